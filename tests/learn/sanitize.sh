#!/bin/sh
# Checks what tests/sanitize runs under compute-sanitizer: sh sanitize.sh PATH_OF_SANITIZE
#
# It works on a copy; compute-sanitizer and the test programs are stand-ins. Nothing is built, no GPU is needed.
# shellcheck disable=SC2016  # Stand-ins are scripts in quotes.
set -u

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
programs=$folder/build/cuda/tests
mkdir -p "$folder/tests" "$folder/bin" "$programs"
cp "$1" "$folder/tests/sanitize"
failures=0

wrong() {
  echo "WRONG: $*"
  cat "$folder/out" "$folder/err"
  failures=$((failures + 1))
}

stand_in() {
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
# Says what it was called with; finds fault with the program in $FAULTY.
stand_in "$folder/bin/compute-sanitizer" "echo \"\$*\" >>'$folder/calls'"'
case $* in *"/$FAULTY "*) echo "a race"; exit 9 ;; esac; echo "All tests passed (1 assertion)"'
all='test_gpu test_gpu_hopper test_chapter_00 test_chapter_02'
for chapter in 00_first 01_naive_cpu 02_second; do mkdir -p "$folder/tests/chapters/$chapter"; done
for program in $all; do stand_in "$programs/$program" 'exit 0'; done

# expect STATUS TEXT [FAULTY] TOOL...
expect() {
  status=$1
  text=$2
  FAULTY=$3
  export FAULTY
  shift 3
  : >"$folder/calls"
  got=0
  PATH="$folder/bin:$PATH" sh "$folder/tests/sanitize" "$@" >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq "$status" ] || wrong "sanitize $*: exit code $got, wanted $status"
  cat "$folder/out" "$folder/err" | grep -q -- "$text" || wrong "sanitize $*: does not say '$text'"
}

expect 2 "no tool 'fastcheck'" nothing fastcheck
[ ! -s "$folder/calls" ] || wrong 'an unknown tool: something ran'

expect 0 'racecheck  test_gpu_hopper  clean: All tests passed' nothing racecheck
for program in $all; do
  grep -q -- "--tool racecheck .*/$program ~" "$folder/calls" || wrong "racecheck: $program did not run"
done
! grep -q test_chapter_01 "$folder/calls" || wrong 'chapter 01 has no kernels, and was run'
grep -q 'test_gpu ~.*~\[lock\]' "$folder/calls" || wrong 'racecheck: runs what a lock orders'

expect 0 'initcheck' nothing
for tool in memcheck racecheck synccheck initcheck; do
  grep -q -- "--tool $tool .*/test_gpu_hopper ~" "$folder/calls" || wrong "all tools: no $tool"
done
grep -q -- '--tool initcheck .*~\[poison\]' "$folder/calls" || wrong 'initcheck: runs what reads poison'

expect 1 'test_gpu_hopper  FAILED' test_gpu_hopper memcheck
grep -q 'a race' "$folder/out" || wrong 'a fault: not shown'

# A build without sm_90a has no such program.
rm "$programs/test_gpu_hopper"
expect 0 'test_gpu_hopper  left out' nothing memcheck
if grep -q hopper "$folder/calls"; then wrong 'runs a program that is not there'; fi

if [ "$failures" -ne 0 ]; then
  echo "$failures wrong"
  exit 1
fi
echo 'sanitize: runs what it should'
