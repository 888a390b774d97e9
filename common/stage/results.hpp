#pragma once
/// \file
/// What GPUs measured: collected in one file a GPU, and shown as tables in the READMEs.

namespace stage {

/// `results merge FOLDER --date DATE --commit COMMIT --hashes FILE JSON…` puts what chapters wrote with `--bench
/// --json` into `FOLDER/<gpu>.json`, whose other chapters stay as they are; `results tables ROOT --hashes FILE
/// [--check]` writes the tables made of ROOT/docs/results/*.json between the markers in ROOT/README.md,
/// ROOT/chapters/*/README.md and ROOT/docs/counting.md; `results plot ROOT --hashes FILE --out FILE` writes a gnuplot
/// script that draws the ladder.
///
/// \return 0; 1 if `--check` finds a region that is not as it would be written, or a file cannot be written; 2 for an
/// argument, a JSON file or a marker that is not as it should be. After 1 and 2 there is one line on standard error;
/// after 2 no file has changed.
int results(int argc, const char* const* argv);

}  // namespace stage
