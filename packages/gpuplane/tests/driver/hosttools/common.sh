# What the fake tools share. SIMHOST_ROOT is the root they run in, MACHINE the host's own (its kernel is there), STATE
# a directory beside it: what the machine holds in its kernel, its mirrors, and what shall go wrong.
# Tools start hundreds of times in a test: what the shell can do itself starts no other program.
set -eu
tool=${0##*/}
read -r kernel <"$MACHINE/proc/sys/kernel/osrelease"

# trouble/<tool>: the first line is an exit status, the second a pattern of arguments, the rest what the tool says.
# cured/<tool>: the condition of a shell under which it says so no more.
if [ -f "$STATE/trouble/$tool" ] && ! { [ -f "$STATE/cured/$tool" ] && (set +e && . "$STATE/cured/$tool"); }; then
    pattern=$(sed -n 2p "$STATE/trouble/$tool")
    case "$*" in
        *$pattern*)
            sed 1,2d "$STATE/trouble/$tool" >&2
            exit "$(sed -n 1p "$STATE/trouble/$tool")"
            ;;
    esac
fi

# kill/<tool>: the tool does half its work and its caller is killed, as by the kernel's out-of-memory killer.
half_way() {
    if [ -f "$STATE/kill/$tool" ]; then
        rm "$STATE/kill/$tool"
        kill -9 "$PPID"
        exit 137
    fi
}

fail() {
    code=$1
    shift
    echo "$*" >&2
    exit "$code"
}

# A network with a proxy, or with a certificate of its own, for tools that fetch something: proxy is its address, ca the
# certificate, which update-ca-certificates has to have put into the bundle.
fetch_or() {
    if [ -f "$STATE/proxy" ] && [ "${https_proxy:-}" != "$(cat "$STATE/proxy")" ]; then
        fail "$1" "$2"
    elif [ -f "$STATE/ca" ] && ! grep -qs -F -f "$STATE/ca" "$SIMHOST_ROOT/etc/ssl/bundle"; then
        fail "$3" "$4"
    fi
}

# proc/modules from the modules in $STATE/modules (newest first) and the holders in $STATE/holders.
list_modules() {
    holders=0
    while read -r _; do holders=$((holders + 1)); done <"$STATE/holders"
    others=0
    users=
    while read -r name; do
        [ "$name" = nvidia ] || { others=$((others + 1)) users=$users$name,; }
    done <"$STATE/modules"
    while read -r name; do
        if [ "$name" = nvidia ]; then
            echo "nvidia 1 $((others + holders)) ${users:--} Live 0x0"
        else
            echo "$name 1 0 - Live 0x0"
        fi
    done <"$STATE/modules" >"$MACHINE/proc/modules"
}

# Whether a file has such a line.
has_line() {
    while read -r line; do
        if [ "$line" = "$2" ]; then return 0; fi
    done <"$1"
    return 1
}

# Write a file again without a line.
drop_line() {
    rest=
    while read -r line; do
        if [ "$line" != "$2" ]; then
            rest="$rest$line
"
        fi
    done <"$1"
    printf %s "$rest" >"$1"
}
