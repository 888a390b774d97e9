#include "common/stage/profile.hpp"

int main(int argc, char** argv) { return stage::profile(argc, argv); }
