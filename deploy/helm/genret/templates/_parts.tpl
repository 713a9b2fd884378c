{{- define "genret.labels" -}}
app.kubernetes.io/name: genret
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "genret.settings" -}}
{{- $written := list (printf "indexes.%s" .Values.index.name) "server" "metrics" "log" "shutdown" }}
{{- range $table, $value := dict "models.default" .Values.model.checkpoint "tls" .Values.tls.secret "auth" .Values.tokens.secret }}
{{- if $value }}{{ $written = append $written $table }}{{ end }}
{{- end }}
{{- range $written }}
{{- if regexMatch (printf "(?m)^\\[%s\\]" (regexQuoteMeta .)) (regexReplaceAll "[\"' \t]" $.Values.settings "") }}
{{- fail (printf "settings: [%s] is a table that the chart writes; set its keys by values, or by variables in env" .) }}
{{- end }}
{{- end -}}
[indexes.{{ .Values.index.name | quote }}]
path = "/srv/genret/indexes/{{ .Values.index.path }}"
{{ with .Values.model }}
{{- if .checkpoint }}
[models.default]
checkpoint = "{{ if .claim }}/srv/genret/models/{{ end }}{{ .checkpoint }}"
{{ end }}
{{- end }}
[server]
host = "0.0.0.0"
port = 50051
# With a certificate calls are encrypted whatever this says. It is for metrics, which are not, and which the kubelet
# and Prometheus fetch over the network of the cluster.
insecure = true
{{ if .Values.tls.secret }}
[tls]
certificate = "/etc/genret-tls/tls.crt"
key = "/etc/genret-tls/tls.key"
{{- with .Values.tls.clientCa }}
client_ca = "/etc/genret-tls/{{ . }}"
{{- end }}
{{ end }}
{{- if .Values.tokens.secret }}
[auth]
token_file = "/etc/genret-tokens/tokens"
{{ end }}
[metrics]
host = "0.0.0.0"
port = 9464

[log]
level = "info"
format = "json"
requests = true

[shutdown]
# The time from readiness off until no balancer sends requests here any more: no preStop hook is needed.
lame_duck_seconds = {{ .Values.shutdown.lameDuckSeconds }}
drain_seconds = {{ .Values.shutdown.drainSeconds }}
{{ with .Values.settings }}
{{ . }}
{{- end }}
{{- end }}
