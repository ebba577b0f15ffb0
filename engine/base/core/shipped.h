// Where the files are that come with Thinwire, wherever it was installed or moved to.
#pragma once

#include <string>

namespace thinwire {

// The folder of `train`, `plan` and the others: that of the running program; for `thinwire`, which alone is in bin/,
// the one of libexec/ beside it.
std::string programs_folder();

// The folder that holds configs/, scripts/ and docs/: share/thinwire of an installed tree, the root of the source tree
// for programs of a build folder in it, else $THINWIRE_SHARE; empty where the programs stand alone.
std::string share_folder();

// "thinwire train" where it is installed so, else "train": what a person types.
std::string command_name(const std::string& program);

// The shipped file that a relative path means where nothing of that name is here: "configs/x.json", and without their
// folder those of configs/, configs/compression/ and configs/clusters/. `suffix` is what files have behind the path.
// Empty where `path` is here, is absolute, or nothing of that name ships.
std::string shipped_file(const std::string& path, const std::string& suffix = "");

// What to say of a name that shipped_file found.
std::string shipped_note(const std::string& found);

}  // namespace thinwire
