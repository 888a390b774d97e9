#include "common/stage/results.hpp"

int main(int argc, char** argv) { return stage::results(argc, argv); }
