# Sourced by the run.sh of each example, in the root of the repository.
if [ -x .venv/bin/crosscheck ]; then # what `make venv` installs; else what is on the PATH
    PATH=$PWD/.venv/bin:$PATH
fi

# expect CODE COMMAND...: show the command and run it; the example ends where the exit code is another.
expect() {
    local wanted=$1 code=0
    shift
    printf '\n$ %s\n' "$*"
    "$@" || code=$?
    if [ "$code" != "$wanted" ]; then
        printf 'expected exit code %s, got %s\n' "$wanted" "$code" >&2
        exit 1
    fi
}
