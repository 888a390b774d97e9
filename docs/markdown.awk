# Makes a Markdown file of the repository, written to be read on GitHub, one that Doxygen understands.
#
#   - The first heading gets a label made of the file's path, so that the page has the same address in every version of
#     Doxygen: chapters/00_first_kernel/README.md is the page chapters_00_first_kernel.
#   - A link to a file, relative to the one it stands in, becomes a reference to its page or its source. Files that the
#     site has no page for are linked as files/PATH, and `./learn docs` puts them there.
#
# Doxygen calls it (docs/Doxyfile, FILTER_PATTERNS), in the repository's root, with one file's name.

BEGIN { root = ENVIRON["PWD"] "/" }

FNR == 1 {
  path = FILENAME
  if (index(path, root) == 1) path = substr(path, length(root) + 1)
  folder = path
  if (!sub(/\/[^\/]*$/, "", folder)) folder = ""
}

# Code keeps what it has.
/^[ ]*```/ { in_code = !in_code }
in_code { print; next }

/^# / && !labelled {
  labelled = 1
  if ($0 !~ /\{#/) $0 = $0 " {#" page(path) "}"
}

{
  rest = $0
  line = ""
  while (match(rest, /\]\([^() ]+\)/)) {
    text = substr(rest, 1, RSTART - 1)
    target = link(substr(rest, RSTART + 2, RLENGTH - 3))
    rest = substr(rest, RSTART + RLENGTH)
    # Doxygen shows the text of a reference as it is, backticks and all.
    if (target ~ /^@ref/ && match(text, /\[`[^`]*`$/)) {
      text = substr(text, 1, RSTART) substr(text, RSTART + 2, RLENGTH - 3)
    }
    line = line text "](" target ")"
  }
  print line rest
}

# The label of a Markdown file's page.
function page(file) {
  if (file == "README.md") return "mainpage"
  sub(/\.md$/, "", file)
  sub(/\/README$/, "", file)
  gsub(/[^A-Za-z0-9]/, "_", file)
  return file
}

# What a link's target is on the site; a target that is no file of the repository stays as it is.
function link(target,   file) {
  if (target ~ /^([a-z]+:|#)/) return target
  file = target
  sub(/#.*$/, "", file)
  file = normalized(folder == "" ? file : folder "/" file)
  if (!exists(file)) return target
  if (file == "README.md") return "@ref index"
  if (file ~ /^docs\/figures\//) return substr(file, length("docs/figures/") + 1)
  # What docs/Doxyfile reads has a page.
  if (file !~ /^(docs|common|chapters)\// || file ~ /\/exercises\//) return "files/" file
  if (file ~ /\.md$/) return "@ref " page(file)
  if (file ~ /\.(cuh|cu|hpp|cpp)$/) return "@ref " file
  return "files/" file
}

# a/b/../c and a/./c are a/c.
function normalized(file) {
  while (sub(/(^|\/)\.\//, "/", file)) continue
  while (sub(/[^\/]+\/\.\.\//, "", file)) continue
  sub(/^\//, "", file)
  return file
}

# Asked of the shell: some versions of awk stop when they are to read a folder.
function exists(file) { return file !~ /'/ && system("test -f '" file "'") == 0 }
