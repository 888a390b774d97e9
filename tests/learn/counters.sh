#!/bin/sh
# Checks how ./learn profile, count, tables, compare and bench call ncu, gnuplot, Python and the book's programs:
# sh counters.sh PATH_OF_LEARN
#
# It works on a copy among empty chapters; the GPU, ncu, gnuplot, cmake and all programs are stand-ins. Nothing is built.
# shellcheck disable=SC2016  # Stand-ins are scripts in quotes.
set -u
unset BOOK_COMMIT

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
book=$folder/book
mkdir "$book" "$folder/bin"
cp "$1" "$book/learn"
for chapter in 00_first_kernel 02_naive_gpu; do
  mkdir -p "$book/chapters/$chapter"
  : >"$book/chapters/$chapter/stage.cu"
  echo "$chapter" >"$book/chapters/$chapter/a.cuh"
done
# source_file FILE INCLUDED...: a file that includes others of common.
source_file() {
  mkdir -p "$book/${1%/*}"
  file=$book/$1
  shift
  for included in "$@"; do printf '#include "common/%s"\n' "$included"; done >"$file"
}
source_file chapters/00_first_kernel/stage.cu gpu/emulation.hpp gpu/buffer.hpp stage/program.hpp
source_file chapters/00_first_kernel/product.cpp
source_file chapters/02_naive_gpu/a.cuh attention/problem.hpp attention/cost.hpp gpu/a.cuh kernel/a.hpp
source_file common/gpu/a.cuh gpu/a_shape.hpp gpu/cuda/a.cuh gpu/emulator/a.hpp
source_file common/gpu/cuda/a.cuh gpu/cuda/check.hpp gpu/cuda/operands.inc
source_file common/kernel/a.hpp kernel/a.cuh
source_file common/kernel/a.cuh gpu/tensor_map.hpp
for header in gpu/a_shape.hpp gpu/buffer.hpp gpu/cuda/check.hpp gpu/cuda/operands.inc gpu/cuda/tensor_map.cpp \
  gpu/emulation.hpp gpu/emulator/a.hpp gpu/not_included.cuh gpu/tensor_map.hpp attention/cost.hpp \
  attention/problem.hpp stage/program.hpp; do
  source_file "common/$header"
done
failures=0

wrong() {
  echo "WRONG: $*"
  cat "$folder/out" "$folder/err"
  failures=$((failures + 1))
}

for tool in sh env cat cut date dirname grep mkdir mktemp mv readlink rm sed sha256sum sort tr; do
  ln -s "$(command -v "$tool")" "$folder/bin/$tool"
done

# stand_in PATH SCRIPT
stand_in() {
  mkdir -p "${1%/*}"
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
for tool in cmake nvcc apt-get; do stand_in "$folder/bin/$tool" 'exit 0'; done
stand_in "$folder/bin/nproc" 'echo 1'
stand_in "$folder/bin/id" 'echo 1000'
stand_in "$folder/bin/dpkg-query" 'case "$*" in *gnuplot*) exit 1 ;; esac; printf installed'

# expect STATUS TEXT ARGUMENT...
expect() {
  status=$1
  text=$2
  shift 2
  got=0
  PATH=$folder/bin "$book/learn" "$@" >"$folder/out" 2>"$folder/err" </dev/null || got=$?
  [ "$got" -eq "$status" ] || wrong "learn $*: exit code $got, wanted $status"
  cat "$folder/out" "$folder/err" | grep -qF -- "$text" || wrong "learn $*: does not say '$text'"
}

# logged FILE TEXT: a stand-in was called so.
logged() {
  grep -qF -- "$2" "$folder/$1" || {
    wrong "no call '$2' among"
    cat "$folder/$1"
  }
}

# --- Without a GPU, without ncu ---------------------------------------------------------------------------------------

expect 2 'needs an NVIDIA GPU' profile 02
stand_in "$folder/bin/nvidia-smi" 'echo "GPU 0: a stand-in"'
if [ ! -x /usr/local/cuda/bin/ncu ] && [ ! -d /opt/nvidia/nsight-compute ]; then
  expect 2 'ncu comes with the CUDA toolkit' profile 02
fi

# --- profile ----------------------------------------------------------------------------------------------------------

# ncu runs what follows its options; it does not know one of the metrics.
cat >"$folder/ncu" <<'NCU'
log=
while [ $# -gt 0 ]; do
  case $1 in
    --log-file) log=$2; shift 2 ;;
    --clock-control | --page | --print-units) shift 2 ;;
    --metrics) metrics=$2; shift 2 ;;
    --csv) shift ;;
    *) break ;;
  esac
done
case $metrics in
  *odd__metric.*) echo '==ERROR== Failed to find metric regex:^odd__metric(\.sum)$' >"$log"; exit 1 ;;
esac
echo "counters: $metrics" >"$log"
exec "$@"
NCU
stand_in "$folder/bin/ncu" "echo \"ncu \$*\" >>'$folder/calls'; $(cat "$folder/ncu")"
stand_in "$book/build/cuda/common/profile" \
  'case $1 in metrics) echo good__metric.sum,odd__metric.sum,odd__metrics.sum ;; *) echo "report of $2"; cat "$2" ;; esac'
stand_in "$book/build/cuda/chapters/02_naive_gpu" "echo \"02 \$*\" >>'$folder/calls'; echo a table"

expect 0 'report of' profile 02 --causal --kernel three_kernels
logged calls 'ncu --clock-control none --csv --page raw --print-units base --metrics good__metric.sum,odd__metric.sum'
logged calls '02 --causal --kernel three_kernels'
grep -qx 'counters: good__metric.sum,odd__metrics.sum' "$folder/out" || wrong 'profile: the unknown metric was not left out'
if grep -q 'a table' "$folder/out"; then wrong 'profile: shows what the program prints'; fi
if grep -q nsys "$folder/out"; then wrong 'profile: speaks of nsys, which is not here'; fi

stand_in "$folder/bin/nsys" 'case $1 in stats) echo "a line a kernel" ;; esac'
expect 0 'a line a kernel' profile 02
stand_in "$folder/bin/nsys" 'exit 1'
expect 0 'made no timeline' profile 02
rm "$folder/bin/nsys"

stand_in "$book/build/cuda/chapters/02_naive_gpu" 'echo "naive_gpu: no such option" >&2; exit 2'
expect 2 'naive_gpu: no such option' profile 02 --fast
mv "$folder/bin/ncu" "$folder/bin/ncu_that_may"
stand_in "$folder/bin/ncu" 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1'
expect 1 'run this as root' profile 02
mv "$folder/bin/ncu_that_may" "$folder/bin/ncu"

# --- count ------------------------------------------------------------------------------------------------------------

for build in cuda emulator-check; do
  stand_in "$book/build/$build/common/counts" "case \$1 in metrics) echo good__metric.sum ;; *) echo \"counts $build \$*\" >>'$folder/calls' ;; esac"
  stand_in "$book/build/$build/common/results" "echo \"results $build \$*\" >>'$folder/calls'"
  for chapter in 00_first_kernel 02_naive_gpu; do
    stand_in "$book/build/$build/chapters/$chapter" "echo \"$build $chapter \$*\" >>'$folder/calls'; echo a table"
  done
done
: >"$folder/calls"
expect 0 'counting: 02_naive_gpu' count
logged calls "cuda 02_naive_gpu --count --json $book/build/cuda/counts/02_naive_gpu.json"
logged calls 'counts cuda gpu docs/results --date 2'
logged calls ' --commit unknown --hashes build/kernel_hashes_counted build/cuda/counts/00_first_kernel.json build/cuda/counts/00'
logged calls 'results cuda tables . --hashes build/kernel_hashes'
if grep -q 'a table' "$folder/out"; then wrong 'count: shows what the programs print'; fi

: >"$folder/calls"
expect 0 'counting: 02_naive_gpu' count --check
logged calls 'counts emulator-check emulator docs/results/emulator-counts.json --check build/emulator-check/counts/00_first'
if grep -q 'tables\|cuda' "$folder/calls"; then wrong 'count --check: does more than look'; fi
: >"$folder/calls"
expect 0 'counting: 02_naive_gpu' count --emulator
logged calls 'counts emulator-check emulator docs/results/emulator-counts.json build/emulator-check/counts/00_first_kernel'
logged calls 'results emulator-check tables .'

# A GPU whose counters nothing here can read.
if [ ! -x /usr/local/cuda/bin/ncu ] && [ ! -d /opt/nvidia/nsight-compute ]; then
  mv "$folder/bin/ncu" "$folder/ncu_away"
  : >"$folder/calls"
  expect 0 'no ncu (Nsight Compute) to read its counters: counting on the emulator' count
  logged calls 'counts emulator-check emulator docs/results/emulator-counts.json build/emulator-check/counts/00_first_kernel'
  if grep -q cuda "$folder/calls"; then wrong 'count without ncu: runs on the GPU'; fi
  expect 0 'counting: 02_naive_gpu' count --emulator
  if grep -q ncu "$folder/out"; then wrong 'count --emulator: speaks of ncu'; fi
  mv "$folder/ncu_away" "$folder/bin/ncu"
fi
stand_in "$book/build/emulator-check/chapters/02_naive_gpu" 'echo "naive_gpu: wrong" >&2; exit 1'
expect 1 'naive_gpu: wrong' count --emulator

# --- bench ------------------------------------------------------------------------------------------------------------

# measures CHAPTER [SCRIPT]: the chapter's program, which says that it ran; then the script.
measures() {
  stand_in "$book/build/cuda/chapters/$1" "echo \"run $1 \$2 \$3\" >>'$folder/calls'; ${2:-:}"
}
stand_in "$book/build/cuda/common/results" \
  "case \$1 in plot) : >\"\$6\" ;; merge) shift 10; echo \"merge \$*\" ;; *) echo \"\$1\" ;; esac >>'$folder/calls'"
# called LINE...: these calls were made, in this order, and no others.
called() {
  sed "s|$book/||g" "$folder/calls" >"$folder/were_called"
  printf '%s\n' "$@" | cmp -s - "$folder/were_called" || {
    wrong "bench: not the calls '$*', but"
    cat "$folder/were_called"
  }
}
json=build/cuda/results
measures 00_first_kernel
measures 02_naive_gpu

# One chapter alone is measured and merged alone.
: >"$folder/calls"
expect 0 '02_naive_gpu took' bench 02
called "run 02_naive_gpu $json/02_naive_gpu.json --bench" "merge $json/02_naive_gpu.json" tables

# Each is merged before the next one runs; where that one fails, the results of the first are kept.
: >"$folder/calls"
expect 0 '02_naive_gpu took' bench
called "run 00_first_kernel $json/00_first_kernel.json --bench" "merge $json/00_first_kernel.json" \
  "run 02_naive_gpu $json/02_naive_gpu.json --bench" "merge $json/02_naive_gpu.json" tables
measures 02_naive_gpu 'echo "naive_gpu: wrong" >&2; exit 1'
: >"$folder/calls"
expect 1 'naive_gpu: wrong' bench
called "run 00_first_kernel $json/00_first_kernel.json --bench" "merge $json/00_first_kernel.json" \
  "run 02_naive_gpu $json/02_naive_gpu.json --bench"

# What refuses to merge ends the run.
stand_in "$book/build/cuda/common/results" 'echo "results: refused" >&2; exit 2'
: >"$folder/calls"
expect 2 'results: refused' bench
called "run 00_first_kernel $json/00_first_kernel.json --bench"

# --- compare, bench --peers -------------------------------------------------------------------------------------------

# python3 STATUS_WITHOUT_TORCH STATUS_WITHOUT_CUDA: a Python whose PyTorch is missing, or sees no GPU.
python3_stand_in() {
  stand_in "$folder/bin/python3" \
    "case \$2 in *cuda*) exit $2 ;; *torch*) exit $1 ;; esac; echo \"python3 \$*\" >>'$folder/calls'; echo a comparison"
}
expect 2 'needs python3, which is missing' bench --peers
python3_stand_in 1 1
expect 2 "python3 does not have: 'pip install torch' brings it" bench --peers
python3_stand_in 0 1
expect 2 'needs a PyTorch that sees the GPU' bench --peers
: >"$folder/calls"
expect 0 'does not see the GPU: comparing on the emulator' compare 02
logged calls 'python3 chapters/library/compare.py --library build/emulator/chapters/libbook.so --chapter 02_naive_gpu'
python3_stand_in 0 0
: >"$folder/calls"
expect 0 'a comparison' compare
logged calls 'python3 chapters/library/compare.py --library build/cuda/chapters/libbook.so'
if grep -q -- --chapter "$folder/calls"; then wrong 'compare: one chapter only'; fi
expect 0 'a comparison' compare --emulator
logged calls 'python3 chapters/library/compare.py --library build/emulator/chapters/libbook.so'
expect 0 'a comparison' bench --peers
logged calls 'python3 chapters/library/peers.py measure --library build/cuda/chapters/libbook.so --hashes build/kernel_hashes_measured --commit unknown --out docs/results'
logged calls 'python3 chapters/library/peers.py tables . --hashes build/kernel_hashes'
stand_in "$folder/bin/python3" 'case $2 in *torch*) exit 0 ;; esac; echo "compare: wrong" >&2; exit 1'
expect 1 'compare: wrong' compare 02
: >"$folder/calls"
expect 1 'compare: wrong' bench --peers
rm "$folder/bin/python3"
mv "$folder/bin/nvidia-smi" "$folder/nvidia-smi_away"
expect 2 'needs an NVIDIA GPU' bench --peers
mv "$folder/nvidia-smi_away" "$folder/bin/nvidia-smi"

# --- What makes results stale -----------------------------------------------------------------------------------------

# All sources of the chapters, and what kernels are made of in common; of the emulator nothing.
cat >"$folder/right" <<'END'
chapters/00_first_kernel/a.cuh
chapters/00_first_kernel/product.cpp
chapters/00_first_kernel/stage.cu
chapters/02_naive_gpu/a.cuh
chapters/02_naive_gpu/stage.cu
common/attention/problem.hpp
common/gpu/a.cuh
common/gpu/a_shape.hpp
common/gpu/buffer.hpp
common/gpu/cuda/a.cuh
common/gpu/cuda/check.hpp
common/gpu/cuda/operands.inc
common/gpu/cuda/tensor_map.cpp
common/gpu/tensor_map.hpp
common/kernel/a.cuh
common/kernel/a.hpp
END
sed 's/^[0-9a-f]\{64\}  //' "$book/build/kernel_hashes" | LC_ALL=C sort >"$folder/out"
cmp -s "$folder/out" "$folder/right" || wrong 'other files are hashed than those that are measured'

# --- The plot ---------------------------------------------------------------------------------------------------------

# results_program STATUS SCRIPT: ends so on tables, and plots that script.
results_program() {
  stand_in "$book/build/emulator/common/results" "case \$1 in plot) printf '%s' '$2' >\"\$6\" ;; *) exit $1 ;; esac"
}
picture=$book/docs/figures/ladder.svg
results_program 0 ''
expect 0 '' tables
[ ! -e "$picture" ] || wrong 'tables: drew what was not measured'

results_program 0 'a script'
expect 1 'does not show docs/results' tables --check
expect 0 'was not drawn, because gnuplot is missing' tables
[ ! -e "$picture" ] || wrong 'tables: a picture without gnuplot'
stand_in "$folder/bin/gnuplot" 'printf "%s\n" "<?xml?>" "<svg>"; cat "$1"; exit 0'
expect 0 'Drew docs/figures/ladder.svg' tables
head -1 "$picture" | grep -qx '<?xml?>' || wrong 'tables: the XML declaration is not the first line'
sed -n 2p "$picture" | grep -q '^<!-- drawn from [0-9a-f]\{64\} -->$' || wrong 'tables: the second line is no mark'
expect 0 '' tables --check
expect 0 '' tables
if grep -q Drew "$folder/out"; then wrong 'tables: drew what was there'; fi
rm "$folder/bin/gnuplot"
expect 0 '' tables --check
results_program 0 'another script'
expect 1 'does not show docs/results' tables --check
results_program 1 'a script'
expect 1 '' tables --check
results_program 2 'a script'
expect 2 '' tables

if [ "$failures" -ne 0 ]; then
  echo "$failures wrong"
  exit 1
fi
echo 'learn: profile, count and the plot as they should be'
