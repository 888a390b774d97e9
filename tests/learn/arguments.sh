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
expect_refused 'run, test, bench, compare, profile, count, tables, docs, help' fly
expect_refused 'run, test, bench, compare, profile, count, tables, docs, help' fly --emulator
expect_refused 'there are: 00 01 02 03' run 99
expect_refused 'there are: 00 01 02 03' run 04
expect_refused 'there are: 00 01 02 03' test 99
expect_refused "./learn run 02 --causal" run --causal
expect_refused "./learn run 02 --head-dim" run --emulator --head-dim 64
expect_refused '--seed needs a value' run --seed
expect_refused "'--fast' is not an option" test --fast
expect_refused "'03' is too much" test 02 03
expect_refused "there is no chapter '99'" bench 03 99
expect_refused "'--causal' is not an option" bench 03 --causal
expect_refused 'says nothing about time' bench 03 --emulator
expect_refused 'says nothing about time' bench --emulator
expect_refused 'takes nothing else' bench --peers 03
expect_refused 'takes nothing else' bench --peers --rounds
expect_refused 'says nothing about time' bench --peers --emulator
expect_refused "'--fast' is not an option" compare --fast
expect_refused 'there are: 00 01 02 03' compare 99
expect_refused "'03' is too much" compare 02 03
expect_refused "'--fast' is not an option" tables --fast
expect_refused "'03' is too much" tables --check 03
expect_refused 'there are: 00 01 02 03' profile
expect_refused 'there are: 00 01 02 03' profile 99
expect_refused "./learn profile 02 --causal" profile --causal
expect_refused 'takes no --bench' profile 02 --bench
expect_refused 'takes no --emulator' profile 02 --emulator
expect_refused "'--fast' is not an option" count --fast
expect_refused "'03' is too much" count --check 03
expect_refused "'03' is too much" docs 03
expect_refused 'takes no --emulator' docs --emulator

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
# expect_set_up STATUS TEXT [COMMAND]
expect_set_up() {
  status=$1
  text=$2
  got=0
  PATH=$folder/bin "$learn" "${3:-run}" >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq "$status" ] || wrong "set-up: exit code $got, wanted $status"
  cat "$folder/out" "$folder/err" | grep -qF -- "$text" || wrong "set-up: does not say '$text'"
}

expect_set_up 1 'g++ is missing. The book needs'
expect_set_up 1 'doxygen is missing.' docs

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

# What is compared with PyTorch says what is missing before anything is installed or built.
rm -f "$folder/apt"
expect_set_up 2 'needs python3, which is missing' compare
stand_in python3 'exit 1'
expect_set_up 2 "python3 does not have: 'pip install torch' brings it" compare
[ "$(wc -l <"$folder/err")" -eq 1 ] || wrong 'compare without PyTorch: not one line'
[ ! -e "$folder/apt" ] || wrong 'compare without PyTorch: apt-get was called'
rm "$folder/bin/python3"

# The site needs two packages of its own, and no compiler.
rm -f "$folder/apt"
expect_set_up 1 'E: no such luck' docs
grep -q 'apt-get .*install --no-install-recommends doxygen graphviz$' "$folder/apt" || wrong 'docs: other packages'
if grep -q 'cmake' "$folder/apt"; then wrong 'docs: installs what it does not need'; fi

# With everything there, no word about it and no call: it goes on to build, and stops for want of cmake.
rm -f "$folder/apt"
stand_in dpkg-query 'printf installed'
expect_set_up 1 'configuring'
[ ! -e "$folder/apt" ] || wrong 'apt-get was called although nothing is missing'
if grep -q Installing "$folder/out"; then wrong 'speaks of installing although nothing is missing'; fi
[ ! -e "$folder/book/build/emulator-check/CMakeCache.txt" ] || wrong 'half a configuration is left'

# --- The site ---------------------------------------------------------------------------------------------------------

# Doxygen gets the chapters in their order, those without a text left out; what it complains about is shown, and learn fails.
for chapter in 03_online_softmax 00_first_kernel 02_naive_gpu 01_naive_cpu; do
  echo '# A chapter' >"$folder/book/chapters/$chapter/README.md"
done
stand_in doxygen 'grep subpage build/docs/pages/chapters.md; exit 1'
ln -s "$(command -v grep)" "$folder/bin/grep"
expect_set_up 1 'doxygen found fault' docs
printf -- '- \\subpage chapters_%s\n' 00_first_kernel 01_naive_cpu 02_naive_gpu 03_online_softmax >"$folder/right"
grep subpage "$folder/err" | cmp -s - "$folder/right" || wrong 'docs: not the chapters in their order'

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
