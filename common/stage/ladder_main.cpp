#include "common/stage/ladder.hpp"

int main(int argc, char** argv) { return stage::ladder(argc, argv); }
