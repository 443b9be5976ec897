{{- define "kube-ipvs.labels" -}}
app.kubernetes.io/name: kube-ipvs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kube-ipvs.image" -}}
{{- $repository := required "image.repository: set it to the image in your registry" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- $repository }}@{{ .Values.image.digest }}
{{- else }}
{{- $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* The daemon's flags, which the init container has too. */}}
{{- define "kube-ipvs.flags" -}}
- --config=/var/lib/kube-ipvs/config.conf
- --hostname-override=$(NODE_NAME)
{{- with .Values.eject }}
- --eject={{ . }}
{{- end }}
{{- with .Values.weightsByDistance }}
- --weights-by-distance={{ . }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
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
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- end }}

{{- /*
The probes' target: the port, and the host unless that is every address of the node. Like the pod, the kubelet is on the
node's network, so it reaches a loopback address too.
*/}}
{{- define "kube-ipvs.probed" -}}
{{- $address := .Values.config.healthzBindAddress | default "0.0.0.0:10256" | toString }}
{{- if not (regexMatch `^([0-9.]+|\[.+\]):[0-9]+$` $address) }}
{{- fail "config.healthzBindAddress: set an address with its port, such as 127.0.0.1:10256; the probes use it" }}
{{- end }}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" | trimAll "[]" }}
{{- if not (has $host (list "0.0.0.0" "::")) }}
host: {{ quote $host }}
{{- end }}
port: {{ regexFind "[0-9]+$" $address }}
{{- end }}
