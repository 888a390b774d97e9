#!/bin/sh
# Checks what ./learn answers before it builds anything: sh tests/learn/arguments.sh PATH_OF_LEARN
#
# It works on a copy among empty chapters; dpkg-query, apt-get, id and sudo are stand-ins. Nothing is installed or built.
set -u

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/book"
cp "$1" "$folder/book/learn"
learn=$folder/book/learn
for chapter in 00_first_kernel 01_naive_cpu 02_naive_gpu 03_online_softmax; do
  mkdir -p "$folder/book/chapters/$chapter"
  : >"$folder/book/chapters/$chapter/stage.cu"
done
mkdir "$folder/book/chapters/04_not_written_yet"
failures=0

wrong() {
  echo "WRONG: $*"
  cat "$folder/out" "$folder/err"
  failures=$((failures + 1))
}

# expect STATUS TEXT ARGUMENT...: learn ends with STATUS and says TEXT.
expect() {
  status=$1
  text=$2
  shift 2
  got=0
  "$learn" "$@" >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq "$status" ] || wrong "learn $*: exit code $got, wanted $status"
  cat "$folder/out" "$folder/err" | grep -qF -- "$text" || wrong "learn $*: does not say '$text'"
}

# expect_refused TEXT ARGUMENT...: one line on standard error, nothing on standard output, exit code 2.
expect_refused() {
  expect 2 "$@"
  [ ! -s "$folder/out" ] || wrong "refusal printed on standard output"
  [ "$(wc -l <"$folder/err")" -eq 1 ] || wrong "refusal is not one line"
}

expect 0 './learn run' help
expect 0 './learn test' --help
expect 0 './learn test' run --help
expect 2 './learn run'
expect_refused 'run, test, bench, tables, help' fly
expect_refused 'run, test, bench, tables, help' fly --emulator
expect_refused 'there are: 00 01 02 03' run 99
expect_refused 'there are: 00 01 02 03' run 04
expect_refused 'there are: 00 01 02 03' test 99
expect_refused "./learn run 02 --causal" run --causal
expect_refused "./learn run 02 --head-dim" run --emulator --head-dim 64
expect_refused '--seed needs a value' run --seed
expect_refused "'--fast' is not an option" test --fast
expect_refused "'03' is too much" test 02 03
expect_refused "'03' is too much" bench 03
expect_refused 'says nothing about time' bench --emulator
expect_refused "'--fast' is not an option" tables --fast
expect_refused "'03' is too much" tables --check 03

# From another folder, and through a link.
(cd "$folder" && ln -s "$learn" shortcut && ./shortcut help >/dev/null) || wrong "learn through a link"

# --- Set-up: a machine without packages -------------------------------------------------------------------------------

# A PATH with the ordinary tools, our stand-ins, and no compiler.
mkdir "$folder/bin"
for tool in sh env cat dirname mkdir mktemp readlink rm sed; do
  ln -s "$(command -v "$tool")" "$folder/bin/$tool"
done
stand_in() {
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
expect_set_up() {
  status=$1
  text=$2
  got=0
  PATH=$folder/bin "$learn" run >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq "$status" ] || wrong "set-up: exit code $got, wanted $status"
  cat "$folder/out" "$folder/err" | grep -qF -- "$text" || wrong "set-up: does not say '$text'"
}

expect_set_up 1 'g++ is missing. The book needs'

stand_in dpkg-query 'exit 1'
stand_in apt-get "echo \"apt-get \$*\" >>'$folder/apt'; exit 0"
stand_in id 'echo 1000'
expect_set_up 1 'apt-get update && apt-get install -y --no-install-recommends g++ cmake ninja-build'
[ ! -e "$folder/apt" ] || wrong 'apt-get was called without root'

# With sudo it installs; here the installation fails, and learn says so, with apt's own words.
stand_in sudo 'exec "$@"'
stand_in apt-get "echo \"apt-get \$*\" >>'$folder/apt'; case \"\$*\" in *install*) echo 'E: no such luck'; exit 100;; esac"
expect_set_up 1 'E: no such luck'
grep -q 'apt-get .*update' "$folder/apt" || wrong 'no apt-get update'
grep -q 'apt-get .*install --no-install-recommends g++ cmake' "$folder/apt" || wrong 'no apt-get install'
grep -q 'libboost-context-dev  *the emulator' "$folder/out" || wrong 'does not say what a package is for'

# With everything there, no word about it and no call: it goes on to build, and stops for want of cmake.
rm -f "$folder/apt"
stand_in dpkg-query 'printf installed'
expect_set_up 1 'configuring'
[ ! -e "$folder/apt" ] || wrong 'apt-get was called although nothing is missing'
if grep -q Installing "$folder/out"; then wrong 'speaks of installing although nothing is missing'; fi
[ ! -e "$folder/book/build/emulator-check/CMakeCache.txt" ] || wrong 'half a configuration is left'

# --- What is built ----------------------------------------------------------------------------------------------------

# Where the JSON goes to standard output, nothing else goes there.
for option in '--json -' '--json=-'; do
  got=0
  # shellcheck disable=SC2086  # $option is one word or two.
  PATH=$folder/bin "$learn" run 02 --causal $option >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq 1 ] || wrong "run 02 $option without cmake: exit code $got, wanted 1"
  [ ! -s "$folder/out" ] || wrong "run 02 $option: learn's own lines on standard output"
  grep -q 'Kernels run on' "$folder/err" || wrong "run 02 $option: does not say where the kernels run"
done

# A program that refuses its options leaves the results of the last run alone.
stand_in cmake 'exit 0'
stand_in nproc 'echo 1'
results=$folder/book/build/emulator-check/results/02_naive_gpu.json
mkdir -p "$folder/book/build/emulator-check/chapters" "$folder/book/build/emulator-check/results"
printf '#!/bin/sh\necho refused >&2\nexit 2\n' >"$folder/book/build/emulator-check/chapters/02_naive_gpu"
chmod +x "$folder/book/build/emulator-check/chapters/02_naive_gpu"
echo '{}' >"$results"
got=0
PATH=$folder/bin "$learn" run 02 --head-dim 48 >"$folder/out" 2>"$folder/err" </dev/null || got=$?
[ "$got" -eq 2 ] || wrong "a refusing program: exit code $got, wanted 2"
grep -q refused "$folder/err" || wrong 'a refusing program was not run'
[ -s "$results" ] || wrong 'a refusing program: the last results are gone'

if [ "$failures" -ne 0 ]; then
  echo "$failures wrong"
  exit 1
fi
echo 'learn: arguments and set-up as they should be'
