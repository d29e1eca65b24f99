{{/* The image of operator and operands. Values that name NVIDIA's operator mean gpuplane's own image. */}}
{{- define "gpuplane.image" -}}
{{- $o := (eq (include "gpuplane.namesTheirs" .) "true") | ternary dict .Values.operator -}}
{{- $version := $o.version | default .Chart.AppVersion | toString -}}
{{- printf "%s%s%s" (include "gpuplane.imageName" .) (ternary "@" ":" (hasPrefix "sha256:" $version)) $version -}}
{{- end -}}

{{/* The same without its tag or digest. */}}
{{- define "gpuplane.imageName" -}}
{{- $o := (eq (include "gpuplane.namesTheirs" .) "true") | ternary dict .Values.operator -}}
{{- printf "%s/%s" ($o.repository | default "gpuplane") ($o.image | default "gpuplane") -}}
{{- end -}}

{{/* Whether operator.image is that of NVIDIA's operator, as in its chart's own values file; empty for no. */}}
{{- define "gpuplane.namesTheirs" -}}
{{- if eq (.Values.operator.image | default "") "gpu-operator" }}true{{ end -}}
{{- end -}}

{{- define "gpuplane.args" -}}
[run, operator{{ if eq ((.Values.operator.logging).level | default "info") "debug" }}, --verbose{{ end }}]
{{- end -}}

{{/* The settings of the autoscaler, by name. */}}
{{- define "gpuplane.autoscalerEnv" -}}
{{- $a := .Values.autoscaler -}}
{{- $env := deepCopy ($a.env | default dict) -}}
{{- with $a.clusterName }}{{- $_ := set $env "CLUSTER_NAME" . -}}{{ end -}}
{{- with $a.cloudEndpoint }}{{- $_ := set $env "AWS_ENDPOINT_URL" . -}}{{ end -}}
{{- if not $env.CLUSTER_NAME -}}
{{- fail "autoscaler.clusterName is not set: the name that subnets and security groups carry in their tags" -}}
{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* What values add to the operator's pod, its container, and its tolerations. */}}
{{- define "gpuplane.pod" -}}
{{- $more := dict -}}
{{- with .Values.operator.imagePullSecrets -}}
{{- $secrets := list -}}
{{- range . }}{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}{{- end -}}
{{- $_ := set $more "imagePullSecrets" $secrets -}}
{{- end -}}
{{- with .Values.operator.nodeSelector }}{{- $_ := set $more "nodeSelector" . -}}{{- end -}}
{{- with .Values.operator.affinity }}{{- $_ := set $more "affinity" . -}}{{- end -}}
{{- with $more }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "gpuplane.tolerations" -}}
{{- with .Values.operator.tolerations }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "gpuplane.container" -}}
{{- $more := dict -}}
{{- with .Values.operator.imagePullPolicy }}{{- $_ := set $more "imagePullPolicy" . -}}{{- end -}}
{{- with $more }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* devicePlugin.config with what the device plugin's own chart calls it: name, default, and data as a dict. */}}
{{- define "gpuplane.pluginConfig" -}}
{{- $own := (.Values.devicePlugin).config | default dict -}}
{{- $theirs := .Values.config | default dict -}}
{{- $data := $own.map | default $theirs.map | default dict -}}
{{- if and (not $data) $own.create -}}{{- $data = $own.data | default dict -}}{{- end -}}
{{- $name := $own.name | default $theirs.name | default (ternary "device-plugin-config" "" (gt (len $data) 0)) -}}
{{- $default := $own.default | default $theirs.default -}}
{{- if and (not $default) (hasKey $data "default") -}}{{- $default = "default" -}}{{- end -}}
{{- if and (not $default) (eq (len $data) 1) -}}{{- $default = first (keys $data) -}}{{- end -}}
{{- if and $default (not $name) -}}
{{- fail "devicePlugin.config.default names a configuration, but there is no ConfigMap: set devicePlugin.config.name or map" -}}
{{- end -}}
{{- dict "name" $name "default" ($default | default "") "data" $data | toJson -}}
{{- end -}}

{{/* spec of the ClusterPolicy: the groups of values that are set, without what is the chart's own. */}}
{{- define "gpuplane.spec" -}}
{{- $spec := omit (deepCopy (.Values | toYaml | fromYaml)) "clusterPolicy" "config" "extraObjects" "platform" "gpuCluster" "draDriver" "node-feature-discovery" "global" "admission" "scheduler" "autoscaler" "monitoring" "podScheduler" "dashboard" -}}
{{- range $key := .Files.Get "files/plugin-keys.json" | fromJsonArray }}{{- $_ := unset $spec $key -}}{{ end -}}
{{- $_ := set $spec "nfd" (omit $spec.nfd "nodefeaturerules" "nameOverride" "master" "worker") -}}
{{- $_ := set $spec "cdi" (omit $spec.cdi "nvidiaHookPath" "featureFlags") -}}
{{- $_ := set $spec "gfd" (omit $spec.gfd "enableHostNetwork" "noTimestamp" "sleepInterval" "nameOverride" "namespaceOverride" "securityContext") -}}
{{- $operator := omit $spec.operator "repository" "image" "version" "imagePullPolicy" "imagePullSecrets" "replicas" "priorityClassName" "nodeSelector" "tolerations" "affinity" "resources" "env" "logging" "upgradeCRD" "cleanupCRD" -}}
{{- $_ := set $spec "operator" $operator -}}
{{- $driver := omit $spec.driver "nvidiaDriverCRD" -}}
{{- if (($spec.driver).nvidiaDriverCRD).enabled -}}{{- $_ := set $driver "useNvidiaDriverCRD" true -}}{{- end -}}
{{- with $driver.upgradePolicy -}}
{{- $policy := omit . "gpuPodDeletion" -}}
{{- with .gpuPodDeletion }}{{- $_ := set $policy "podDeletion" . -}}{{- end -}}
{{- $_ := set $driver "upgradePolicy" $policy -}}
{{- end -}}
{{- $_ := set $spec "driver" $driver -}}
{{- range $group := list "dcgmExporter" "migManager" -}}
{{- $found := index $spec $group -}}
{{- if $found.config }}{{- $_ := set $found "config" (omit $found.config "create" "data") -}}{{- end -}}
{{- end -}}
{{- $config := omit (include "gpuplane.pluginConfig" . | fromJson) "data" -}}
{{- $plugin := omit $spec.devicePlugin "config" "enableHostNetwork" -}}
{{- if not $config.default }}{{- $config = omit $config "default" -}}{{- end -}}
{{- if $config.name }}{{- $_ := set $plugin "config" $config -}}{{- end -}}
{{- $_ := set $spec "devicePlugin" $plugin -}}
{{- $theirs := include "gpuplane.fromPlugin" . | fromJson -}}
{{- range $group := list "devicePlugin" "gfd" -}}
{{- $env := (index $theirs $group | default dict).env -}}
{{- if $env }}{{- $_ := set (index $spec $group) "env" (concat $env ((index $spec $group).env | default list)) -}}{{ end -}}
{{- end -}}
{{- with (($theirs.daemonsets).tolerations) }}{{- $_ := set $spec.daemonsets "tolerations" . -}}{{ end -}}
{{- $spec = merge $spec $theirs -}}
{{- if (.Values.monitoring).enabled -}}
{{- $own := ($spec.dcgmExporter).serviceMonitor | default dict -}}
{{- $monitor := dict "enabled" true "honorLabels" true -}}
{{- with .Values.monitoring.labels }}{{- $_ := set $monitor "additionalLabels" (deepCopy .) -}}{{ end -}}
{{- range $name, $value := $own }}{{- $_ := set $monitor $name $value -}}{{ end -}}
{{- $_ := set $spec "dcgmExporter" (mergeOverwrite (dict) ($spec.dcgmExporter | default dict) (dict "serviceMonitor" $monitor)) -}}
{{- end -}}
{{- range $group, $value := $spec -}}
{{- if and (kindIs "map" $value) $value.version }}{{- $_ := set $value "version" (toString $value.version) -}}{{- end -}}
{{- if not (index $spec $group) }}{{- $_ := unset $spec $group -}}{{- end -}}
{{- end -}}
{{- if $spec }}{{ toYaml $spec | nindent 2 }}{{ else }} {}{{ end -}}
{{- end -}}

{{/* spec of the NVIDIADriver: the values of driver by that kind's names. daemonsets counts for its pods too, by itself. */}}
{{- define "gpuplane.driver" -}}
{{- $d := .Values.driver | toYaml | fromYaml -}}
{{- $spec := dict -}}
{{- range $name := .Files.Get "files/driver-fields.json" | fromJsonArray -}}
{{- if hasKey $d $name }}{{- $_ := set $spec $name (index $d $name) -}}{{ end -}}
{{- end -}}
{{- if $spec.version }}{{- $_ := set $spec "version" (toString $spec.version) -}}{{ end -}}
{{- with ($d.repoConfig).configMapName }}{{- $_ := set $spec "repoConfig" (dict "name" .) -}}{{ end -}}
{{- with ($d.virtualTopology).config }}{{- $_ := set $spec "virtualTopologyConfig" (dict "name" .) -}}{{ end -}}
{{- with $d.licensingConfig -}}
{{- $licensing := omit . "configMapName" -}}
{{- with .configMapName }}{{- $_ := set $licensing "name" . -}}{{ end -}}
{{- $_ := set $spec "licensingConfig" $licensing -}}
{{- end -}}
{{- with $d.nvidiaDriverCRD.driverType }}{{- $_ := set $spec "driverType" . -}}{{ end -}}
{{- $selector := $d.nvidiaDriverCRD.nodeSelector -}}
{{- if $selector }}{{- $_ := set $spec "nodeSelector" $selector -}}{{ else }}{{- $_ := set $spec "default" true -}}{{ end -}}
{{- toYaml $spec -}}
{{- end -}}

{{/* Annotations of a hook's objects; (hook, weight). What an earlier run left goes first. */}}
{{- define "gpuplane.hook" -}}
helm.sh/hook: {{ (first .).when }}
helm.sh/hook-weight: {{ last . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Values that are set and change nothing in this release: each reason, and under it the values of a group in a line. */}}
{{- define "gpuplane.noEffect" -}}
{{- $values := .Values | toYaml | fromYaml -}}
{{- $found := dict -}}
{{- range $entry := .Files.Get "files/no-effect.json" | fromJsonArray -}}
{{- $at := $values -}}
{{- range $name := $entry.path -}}
{{- if kindIs "map" $at }}{{ $at = index $at $name }}{{ else }}{{ $at = "" }}{{ end -}}
{{- end -}}
{{- if and $at (ne (toJson $at) (toJson $entry.default)) -}}
{{- $groups := get $found $entry.why | default dict -}}
{{- $group := join "." (initial $entry.path) -}}
{{- $_ := set $groups $group (append (get $groups $group | default list) (last $entry.path)) -}}
{{- $_ := set $found $entry.why $groups -}}
{{- end -}}
{{- end -}}
{{- range $why, $groups := $found }}
  {{ $why }}:
{{- range $group, $names := $groups }}
    {{ if $group }}{{ $group }}: {{ end }}{{ join ", " $names }}
{{- end -}}
{{- end -}}
{{- end -}}
