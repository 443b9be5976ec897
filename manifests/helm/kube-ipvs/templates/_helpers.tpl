{{- define "kube-ipvs.labels" -}}
app.kubernetes.io/name: kube-ipvs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "kube-ipvs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the init container and the daemon have in common, beside their names, arguments and mounts. */}}
{{- define "kube-ipvs.container" -}}
image: {{ include "kube-ipvs.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- end }}
