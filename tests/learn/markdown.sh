#!/bin/sh
# Checks what the site's filter makes of a Markdown file: sh tests/learn/markdown.sh PATH_OF_MARKDOWN_AWK
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$1" "$folder/markdown.awk"
cd "$folder"
mkdir -p chapters/02_naive_gpu/exercises common/kernel docs/figures docs/results tests
for file in README.md LICENSE common/kernel/state.cuh chapters/02_naive_gpu/stage.cu docs/figures/02_a.svg \
  docs/results/README.md docs/results/ncu.txt chapters/02_naive_gpu/exercises/README.md tests/main.cpp; do
  : >"$file"
done

cat >chapters/02_naive_gpu/README.md <<'END'
# 02 · Three kernels
## A second heading
![A figure](../../docs/figures/02_a.svg), [`state.cuh`](../../common/kernel/state.cuh) and [two `words`](stage.cu#L3),
[the book](../../README.md), [results](../../docs/results/README.md#fields) and [numbers](../../docs/results/ncu.txt).
[exercises](exercises/README.md), [tests](../../tests/main.cpp), [a folder](exercises/),
[paper](https://arxiv.org/abs/1706.03762), [below](#sources), [nowhere](../missing.md), a lambda [](int x) { f[i](x); }
```cpp
# [`state.cuh`](../../common/kernel/state.cuh)
```
END
cat >right <<'END'
# 02 · Three kernels {#chapters_02_naive_gpu}
## A second heading
![A figure](02_a.svg), [state.cuh](@ref common/kernel/state.cuh) and [two `words`](@ref chapters/02_naive_gpu/stage.cu),
[the book](@ref index), [results](@ref docs_results) and [numbers](files/docs/results/ncu.txt).
[exercises](files/chapters/02_naive_gpu/exercises/README.md), [tests](files/tests/main.cpp), [a folder](exercises/),
[paper](https://arxiv.org/abs/1706.03762), [below](#sources), [nowhere](../missing.md), a lambda [](int x) { f[i](x); }
```cpp
# [`state.cuh`](../../common/kernel/state.cuh)
```
END
printf '# The book\n[licence](LICENSE)\n' >README.md
printf '# The book {#mainpage}\n[licence](files/LICENSE)\n' >right_of_the_book

awk -f markdown.awk "$folder/chapters/02_naive_gpu/README.md" | diff right - || {
  echo 'WRONG: a chapter'
  exit 1
}
awk -f markdown.awk README.md | diff right_of_the_book - || {
  echo 'WRONG: the main page'
  exit 1
}
echo 'the filter does what it should'
