// The dashboard as Grafana shows it, drawn by Grafana's own components. `data.js` has set what there is to draw:
// manifests/monitoring/dashboard.json, and what Prometheus answered to each panel.

import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';

import {
  applyFieldOverrides,
  createTheme,
  type DataFrame,
  dateTime,
  FieldColorModeId,
  FieldType,
  type Labels,
  ThemeContext,
  type TimeRange,
  toDataFrame,
} from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

interface Series {
  metric: Labels;
  values: Array<[number, string]>;
}

interface Drawn {
  dashboard: { panels: Panel[] };
  /** In seconds. */
  from: number;
  to: number;
  step: number;
  /** For each panel by its number, for each of its targets. */
  answers: Record<number, Array<{ legend: string; series: Series[] }>>;
}

interface Panel {
  id: number;
  type: string;
  title: string;
  gridPos: { x: number; y: number; w: number; h: number };
  fieldConfig: { defaults: any };
  options: any;
}

const WIDTH = 1400;
/** The space between panels, and the height of a row of the grid without it. */
const GAP = 8;
const ROW = 30;
const COLUMN = (WIDTH - GAP) / 24;
const UTC = 'utc';

const { dashboard, from, to, step, answers } = (window as any).drawn as Drawn;
const theme = createTheme({ colors: { mode: 'dark' } });
const range: TimeRange = {
  from: dateTime(from * 1000),
  to: dateTime(to * 1000),
  raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) },
};

/** The name of a series: the legend with the values of its labels. */
function named(legend: string, labels: Labels): string {
  return legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
}

/** A series with a value, or none, at every step: where there is none, the line has a gap. */
function frame(panel: Panel, legend: string, { metric, values }: Series): DataFrame {
  const known = new Map(values.map(([time, value]) => [Math.round(time), Number(value)]));
  const times = Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, number) => from + number * step);
  const mode = panel.type === 'stat' ? FieldColorModeId.Thresholds : FieldColorModeId.PaletteClassic;
  // A quantile of nothing is NaN, which is not drawn either.
  const shown = times.map((time) => known.get(Math.round(time)) ?? NaN).map((value) => (isNaN(value) ? null : value));
  const config = { color: { mode }, ...panel.fieldConfig.defaults, displayNameFromDS: named(legend, metric) };
  return toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: times.map((time) => time * 1000) },
      { name: 'Value', type: FieldType.number, values: shown, config },
    ],
  });
}

/** What a panel shows, with units and colours. */
function frames(panel: Panel): DataFrame[] {
  const series = (answers[panel.id] ?? []).flatMap(({ legend, series }) =>
    series.map((one) => frame(panel, legend, one))
  );
  const fieldConfig = { defaults: {}, overrides: [] };
  return applyFieldOverrides({ data: series, fieldConfig, replaceVariables: (text) => text, theme, timeZone: UTC });
}

function Content({ panel, width, height }: { panel: Panel; width: number; height: number }) {
  const data = frames(panel);
  const { options } = panel;
  if (panel.type === 'stat') {
    const field = data[0]?.fields[1];
    const last = field?.values.findLast((value) => value !== null);
    return <BigValue value={field.display!(last)} {...{ width, height, theme, ...options }} />;
  }
  return <TimeSeries frames={data} timeRange={range} timeZone={UTC} legend={options.legend} width={width} height={height} />;
}

function Place({ panel }: { panel: Panel }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * (ROW + GAP) - GAP];
  const style = { position: 'absolute' as const, left: GAP + x * COLUMN, top: GAP + y * (ROW + GAP), width, height };
  if (panel.type === 'row') {
    const text = { ...theme.typography.h6, color: theme.colors.text.primary, lineHeight: `${height}px` };
    return <div style={{ ...style, ...text }}>⌄ {panel.title}</div>;
  }
  return (
    <div style={style}>
      <PanelChrome title={panel.title} width={width} height={height}>
        {(width, height) => <Content panel={panel} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

const page = document.getElementById('dashboard')!;
createRoot(page).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {dashboard.panels.map((panel) => (
      <Place key={panel.id} panel={panel} />
    ))}
  </ThemeContext.Provider>
);
