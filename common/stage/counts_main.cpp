#include "common/stage/counts_file.hpp"

int main(int argc, char** argv) { return stage::counts(argc, argv); }
