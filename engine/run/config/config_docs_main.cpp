// The build tool `config_docs`: writes docs/config.md and docs/config.schema.json from the table of keys.
#include <iostream>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/run/config/key_table.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "error: config_docs DIRECTORY writes config.md and config.schema.json there\n";
    return static_cast<int>(thinwire::ExitCode::kUsage);
  }
  try {
    const std::string directory = argv[1];
    thinwire::write_file_atomic(directory + "/config.md", thinwire::markdown());
    thinwire::write_file_atomic(directory + "/config.schema.json", thinwire::json_schema());
  } catch (const thinwire::Error& e) {
    std::cerr << "error: " << e.what() << "\n";
    return static_cast<int>(e.code());
  }
  return 0;
}
