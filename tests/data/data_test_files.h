// Temporary directories and small token files for the tests of the data room.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "data/token_file_writer.h"
#include "engine/base/core/error.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test {

struct TempDir : Scratch {
  std::string file(const std::string& name) const { return *this / name; }
};

// `documents` of one sequence each; token p of document i is base + stride*i + p.
inline void write_pair(const std::string& prefix, const std::vector<int>& lengths, int64_t vocab, int base = 0,
                       int stride = 100) {
  TokenFileWriter writer(prefix, vocab);
  for (size_t i = 0; i < lengths.size(); ++i) {
    std::vector<int32_t> ids;
    for (int p = 0; p < lengths[i]; ++p) ids.push_back(base + stride * static_cast<int>(i) + p);
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finalize();
}

// Runs `action`, which must throw Error with `code` and a message that contains every one of `parts`.
inline void expect_error(ExitCode code, const std::vector<std::string>& parts, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    return;
  }
  FAIL() << "no error was thrown";
}

}  // namespace thinwire::test
