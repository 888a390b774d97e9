#!/bin/sh
# Writes wgmma_operands.inc: for each N the lists that the text of a WGMMA instruction needs, because inline PTX has to name every
# one of the N / 2 accumulator registers.
#
#   GPU_WGMMA_REGISTERS_8        "{%0,%1,%2,%3}"
#   GPU_WGMMA_ACCUMULATORS_8     "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#   GPU_WGMMA_OPERAND_8(i)       "%4" for i = 0, "%5" for 1, …: the operands behind the accumulators
#   GPU_WGMMA_EACH_N(X)          X(8) X(16) … X(256)
#
# Run it in this folder after a change: sh generate_wgmma_operands.sh >wgmma_operands.inc
awk 'BEGIN {
  print "// Written by generate_wgmma_operands.sh: lists of registers for inline PTX. clang-format off"
  for (n = 8; n <= 256; n += 8) {
    registers = accumulators = ""
    for (i = 0; i < n / 2; ++i) {
      registers = registers (i ? "," : "") "%" i
      accumulators = accumulators (i ? "," : "") "\"+f\"(d[" i "])"
    }
    printf "#define GPU_WGMMA_REGISTERS_%d \"{%s}\"\n", n, registers
    printf "#define GPU_WGMMA_ACCUMULATORS_%d %s\n", n, accumulators
    for (i = 0; i < 8; ++i) printf "#define GPU_WGMMA_OPERAND_%d_%d \"%%%d\"\n", n, i, n / 2 + i
    printf "#define GPU_WGMMA_OPERAND_%d(i) GPU_WGMMA_OPERAND_%d_##i\n", n, n
  }
  printf "#define GPU_WGMMA_EACH_N(X)"
  for (n = 8; n <= 256; n += 8) printf " X(%d)", n
  print ""
}'
