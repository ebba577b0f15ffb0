// The main of a program of several test files: names of files as arguments run the tests of those files, none runs all.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> files(argv + 1, argv + argc);
  // A filter on the command line goes first; a death test's child has one, too.
  std::string& filter = testing::GTEST_FLAG(filter);
  if (files.empty() || filter != "*") return RUN_ALL_TESTS();
  filter.clear();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string path = test.file();
      if (std::find(files.begin(), files.end(), path.substr(path.rfind('/') + 1)) == files.end()) continue;
      filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  if (!filter.empty()) return RUN_ALL_TESTS();
  std::fprintf(stderr, "error: this program holds no test of %s\n", files[0].c_str());
  return 1;
}
