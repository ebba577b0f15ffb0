// main() of a program made of several test files. Arguments name the files whose tests run; without any, all do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::vector<std::string> files(argv + 1, argv + argc);
  // A filter wins over file names: a death test starts this program again with the same arguments and a filter.
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
  if (!filter.empty()) return RUN_ALL_TESTS();  // single files may be support files, without tests
  std::fprintf(stderr, "error: this program holds no test of %s\n", files[0].c_str());
  return 1;
}
