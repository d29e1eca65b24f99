{{/* A part of the ClusterPolicy's spec from values of the device plugin's own chart. What other values set goes first. */}}
{{- define "gpuplane.fromPlugin" -}}
{{- $v := .Values | toYaml | fromYaml -}}
{{- $plugin := dict "env" (list) -}}
{{- $gfd := dict "env" (list) -}}
{{- range $key, $name := dict "compatWithCPUManager" "PASS_DEVICE_SPECS" "failOnInitError" "FAIL_ON_INIT_ERROR" "deviceListStrategy" "DEVICE_LIST_STRATEGY" "deviceIDStrategy" "DEVICE_ID_STRATEGY" "nvidiaDriverRoot" "NVIDIA_DRIVER_ROOT" "nvidiaDevRoot" "NVIDIA_DEV_ROOT" -}}
{{- $value := index $v $key -}}
{{- if kindIs "slice" $value }}{{ $value = join "," $value }}{{ end -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- $_ := set $plugin "env" (append $plugin.env (dict "name" $name "value" (toString $value))) -}}
{{- end -}}
{{- end -}}
{{- with ($v.config).fallbackStrategies -}}
{{- $entry := dict "name" "FALLBACK_STRATEGIES" "value" (join "," .) -}}
{{- $_ := set $plugin "env" (append $plugin.env $entry) -}}
{{- $_ := set $gfd "env" (append $gfd.env $entry) -}}
{{- end -}}
{{- range $key, $name := dict "noTimestamp" "GFD_NO_TIMESTAMP" "sleepInterval" "GFD_SLEEP_INTERVAL" -}}
{{- $value := index ($v.gfd | default dict) $key -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $gfd "env" (append $gfd.env (dict "name" $name "value" (toString $value))) -}}
{{- end -}}
{{- end -}}
{{- range $group, $made := dict "devicePlugin" $plugin "gfd" $gfd -}}
{{- if not $made.env }}{{- $_ := unset $made "env" -}}{{ end -}}
{{- $network := (index $v $group | default dict).enableHostNetwork -}}
{{- if kindIs "bool" $network }}{{- $_ := set $made "hostNetwork" $network -}}{{ end -}}
{{- end -}}
{{- with $v.resources }}{{- $_ := set $plugin "resources" . -}}{{ end -}}
{{- with ($v.image).pullPolicy }}{{- $_ := set $plugin "imagePullPolicy" . -}}{{ end -}}
{{- with ($v.mps).root }}{{- $_ := set $plugin "mps" (dict "root" .) -}}{{ end -}}
{{- $secrets := list -}}
{{- range $v.imagePullSecrets }}{{- $secrets = append $secrets (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) -}}{{ end -}}
{{- with $secrets }}{{- $_ := set $plugin "imagePullSecrets" . -}}{{ end -}}
{{- $shared := dict -}}
{{- range $key, $name := dict "podAnnotations" "annotations" "podSecurityContext" "podSecurityContext" "nodeSelector" "nodeSelector" "priorityClassName" "priorityClassName" -}}
{{- with index $v $key }}{{- $_ := set $shared $name . -}}{{ end -}}
{{- end -}}
{{- with concat (($v.daemonsets).tolerations | default list) ($v.tolerations | default list) -}}
{{- $_ := set $shared "tolerations" . -}}
{{- end -}}
{{- with ($v.updateStrategy).type }}{{- $_ := set $shared "updateStrategy" . -}}{{ end -}}
{{- with ($v.updateStrategy).rollingUpdate }}{{- $_ := set $shared "rollingUpdate" . -}}{{ end -}}
{{- $made := dict -}}
{{- range $group, $values := dict "devicePlugin" $plugin "gfd" $gfd "daemonsets" $shared -}}
{{- if $values }}{{- $_ := set $made $group $values -}}{{ end -}}
{{- end -}}
{{- with $v.migStrategy }}{{- $_ := set $made "mig" (dict "strategy" .) -}}{{ end -}}
{{- toJson $made -}}
{{- end -}}

{{/* Fails with every value that cannot be followed, why, and what to use. */}}
{{- define "gpuplane.refuse" -}}
{{- $values := .Values | toYaml | fromYaml -}}
{{- $refused := list -}}
{{- range $entry := .Files.Get "files/refused.json" | fromJsonArray -}}
{{- $at := $values -}}
{{- range $name := $entry.path -}}
{{- if kindIs "map" $at }}{{ $at = index $at $name }}{{ else }}{{ $at = "" }}{{ end -}}
{{- end -}}
{{- $fine := not $at -}}
{{- range $accepted := $entry.accepted }}{{- if eq (toJson $accepted) (toJson $at) }}{{ $fine = true }}{{ end -}}{{ end -}}
{{- if not $fine -}}
{{- $refused = append $refused (printf "%s: %s; use: %s" (join "." $entry.path) $entry.why $entry.use) -}}
{{- end -}}
{{- end -}}
{{- with $refused }}{{ fail (printf "values that gpuplane cannot follow:\n  %s" (join "\n  " .)) }}{{ end -}}
{{- end -}}
