#!/bin/sh
# Draws chapter 07's table of rounding errors; needs gnuplot 5.2 or later.
#
#   ./learn run 07 --emulator >build/07.txt
#   sh docs/figures/07_sixteen_bits.sh <build/07.txt >docs/figures/07_sixteen_bits.svg
#
# The figures are computed on the host, so that they are the same on the emulator and on a GPU.
set -eu

# Rows of the table "sixteen_bits": type, factor of the scores, N, and six errors. At the usual scale:
# type N O P attention divided kept
rows=$(awk 'NF == 9 && ($1 == "fp16" || $1 == "bf16") && $2 == 1 { print $1, $3, $4, $5, $6, $7, $8 }')
if [ -z "$rows" ]; then
  echo '07_sixteen_bits.sh: standard input has no table of rounding errors; give it what ./learn run 07 prints' >&2
  exit 1
fi

gnuplot <<END
set terminal svg size 760,420 font 'sans-serif,13' background rgb 'white' name 'sixteen_bits'
set encoding utf8
\$fp16 << ROWS
$(printf '%s\n' "$rows" | sed -n 's/^fp16 //p')
ROWS
\$bf16 << ROWS
$(printf '%s\n' "$rows" | sed -n 's/^bf16 //p')
ROWS
set logscale xy
set format y '10^{%T}'
set grid ytics lc rgb '#dddddd' lt 1
set border 3
set xtics nomirror (64, 512, 4096, 32768)
set ytics nomirror
set yrange [4e-6:0.2]
set xrange [48:44000]
set xlabel 'keys'
set ylabel 'relative error of O, worst row'
set key outside right samplen 2
set arrow from 48, 2**-11 to 44000, 2**-11 nohead dt 3 lc rgb '#4c78a8'
set arrow from 48, 2**-8 to 44000, 2**-8 nohead dt 3 lc rgb '#d62728'
set label '2^{-11}' at 130, 2**-11 offset 0,0.5 textcolor rgb '#4c78a8'
set label '2^{-8}' at 130, 2**-8 offset 0,0.5 textcolor rgb '#d62728'
plot \$bf16 using 1:6 with linespoints lw 2 pt 7 dt 2 lc rgb '#d62728' title 'bf16: O kept in 16 bits', \
  \$bf16 using 1:4 with linespoints lw 2 pt 7 lc rgb '#d62728' title 'bf16: attention', \
  \$bf16 using 1:3 with linespoints lw 1 pt 6 lc rgb '#d62728' title 'bf16: P alone', \
  \$fp16 using 1:6 with linespoints lw 2 pt 7 dt 2 lc rgb '#4c78a8' title 'fp16: O kept in 16 bits', \
  \$fp16 using 1:4 with linespoints lw 2 pt 7 lc rgb '#4c78a8' title 'fp16: attention', \
  \$fp16 using 1:3 with linespoints lw 1 pt 6 lc rgb '#4c78a8' title 'fp16: P alone'
END
