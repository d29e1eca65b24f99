# What a package is made of. `repository` lists what there is, one pattern a line; `cuda` what NVIDIA's repository has.
available() {
    listed "$1" "$STATE/repository" || { has_cuda && listed "$1" "$STATE/cuda"; }
}

has_cuda() {
    for list in "$SIMHOST_ROOT"/etc/apt/sources.list.d/* "$SIMHOST_ROOT"/etc/yum.repos.d/* "$SIMHOST_ROOT"/etc/zypp/repos.d/*; do
        [ -f "$list" ] && grep -q cuda "$list" && return 0
    done
    return 1
}

listed() {
    [ -f "$2" ] || return 1
    while read -r pattern; do
        # shellcheck disable=SC2254  # it is a pattern
        case "$1" in $pattern) return 0 ;; esac
    done <"$2"
    return 1
}

headers() {
    mkdir -p "$SIMHOST_ROOT/usr/src/linux-headers-$1/scripts" "$SIMHOST_ROOT/lib/modules/$1"
    echo "headers of $1" >"$SIMHOST_ROOT/usr/src/linux-headers-$1/Makefile"
    ln -sfn "../../../usr/src/linux-headers-$1" "$SIMHOST_ROOT/lib/modules/$1/build"
    cp "$TOOLS/sign-file" "$SIMHOST_ROOT/usr/src/linux-headers-$1/scripts/"
}

# The kernel whose release begins so.
kernel_of() {
    grep -F -m 1 "$1" "$STATE/kernels"
}

modules() {
    version=$(sed -n "s/^packaged //p" "$STATE/versions")
    mkdir -p "$SIMHOST_ROOT/lib/modules/$1/kernel/nvidia"
    for module in nvidia nvidia-uvm nvidia-modeset; do
        printf 'version=%s\nvermagic=%s\nkind=%s\nsigner=the distribution\n' "$version" "$1" "$2" >"$SIMHOST_ROOT/lib/modules/$1/kernel/nvidia/$module.ko"
    done
}

provide() {
    case "$1" in
        */cuda-keyring_*)
            mkdir -p "$SIMHOST_ROOT/etc/apt/sources.list.d"
            read -r from <"$SIMHOST_ROOT$1"
            echo "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] $from/ /" \
                >"$SIMHOST_ROOT/etc/apt/sources.list.d/cuda.list"
            ;;
        gcc | make | curl | /usr/bin/curl) cp "$TOOLS/${1##*/}" "$SIMHOST_ROOT/usr/bin/" ;;
        linux-headers-*) headers "${1#linux-headers-}" ;;
        kernel-devel-*) headers "${1#kernel-devel-}" ;;
        kernel-default-devel=*)
            edition=${1#*=}
            headers "${edition%.*}-default"
            ;;
        linux-modules-nvidia-*-open-*) modules "$(kernel_of "${1#*-open-}")" open ;;
        linux-modules-nvidia-*) modules "$(kernel_of "${1#*-server-}")" proprietary ;;
        kmod-nvidia-*) modules "$(kernel_of "${1#*\*-}")" proprietary ;;
        nvidia-open-driver-G06-signed-kmp-*) modules "$(sed -n 1p "$STATE/kernels")" open ;;
        nvidia-utils-* | nvidia-driver-cuda | nvidia-compute-utils-G06)
            "$TOOLS/nvidia-installer" "$(sed -n "s/^packaged //p" "$STATE/versions")"
            ;;
        nvidia-fabricmanager* | nvidia-fabric-manager*) cp "$TOOLS/nv-fabricmanager" "$SIMHOST_ROOT/usr/bin/" ;;
    esac
    mkdir -p "$SIMHOST_ROOT/$database"
    echo "$1" >>"$SIMHOST_ROOT/$database/installed"
}
