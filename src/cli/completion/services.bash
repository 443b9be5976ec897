
# Adds the Services that the daemon knows.
_kube_ipvs() {
    _kube__ipvs "$@"
    case "$3 $2" in
        "-o "* | "--output "* | "--control-socket "* | *" -"*) return ;;
    esac
    case "${COMP_WORDS[1]}" in
        explain | list) COMPREPLY+=($(compgen -W "$("$1" completion --services 2> /dev/null)" -- "$2")) ;;
    esac
}
