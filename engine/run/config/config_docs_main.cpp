// The build tool `config_docs`: writes docs/config.md and docs/config.schema.json from the table of keys.
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/program.h"
#include "engine/run/config/key_table.h"

int main(int argc, char** argv) {
  return thinwire::run_program("config_docs", [&] {
    if (argc != 2) thinwire::throw_usage("config_docs DIRECTORY writes config.md and config.schema.json there");
    const std::string directory = argv[1];
    thinwire::write_file_atomic(directory + "/config.md", thinwire::markdown());
    thinwire::write_file_atomic(directory + "/config.schema.json", thinwire::json_schema());
    return 0;
  });
}
