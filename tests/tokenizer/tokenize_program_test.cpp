// The built program `tokenize`, run as a user runs it: output files, messages and exit codes.
#include <sys/wait.h>

#include <cstdlib>

#include "data/token_file.h"
#include "tests/tokenizer/tokenizer_test_support.h"

namespace thinwire::test::tokenize_program_test {
namespace {

class TokenizeProgram : public ScratchTest {
 protected:
  // Runs `tokenize <arguments>` in the shell, inside the scratch directory; what it prints goes to out_ and err_.
  int run(const std::string& arguments, const std::string& before = "") {
    const std::string command = "cd '" + directory_.string() + "' && " + before + " '" + TOKENIZE_PROGRAM + "' " +
                                arguments + " >out.log 2>err.log";
    const int status = std::system(command.c_str());
    out_ = read(path("out.log"));
    err_ = read(path("err.log"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(path(name)); }

  std::string out_, err_;
};

TEST_F(TokenizeProgram, WritesAPair) {
  write("a.txt", "Hello\nthere\n\nBye\n");
  ASSERT_EQ(run("--input a.txt --tokenizer byte --output new/dir/a"), 0) << err_;
  EXPECT_EQ(err_, "");
  EXPECT_NE(out_.find("new/dir/a_text_document.bin/.idx: 2 documents, 14 tokens"), std::string::npos) << out_;
  const TokenFile file(path("new/dir/a_text_document"), 256);
  EXPECT_EQ(file.documents(), 2);
  EXPECT_EQ(read(path("new/dir/a_text_document.bin")), std::string("H\0e\0l\0l\0o\0\n\0t\0h\0e\0r\0e\0B\0y\0e\0", 28));
}

TEST_F(TokenizeProgram, KeysEodAndSkipping) {
  write("a.jsonl", "{\"text\":\"ab\",\"t\":\"c\"}\nbad\n");
  ASSERT_EQ(
      run("--input a.jsonl --tokenizer byte --output a --json-key text t --append-eod --skip-bad-lines --workers 2"), 0)
      << err_;
  EXPECT_EQ(read(path("a_text_document.bin")), std::string("a\0b\0\0\1", 6));
  EXPECT_EQ(read(path("a_t_document.bin")), std::string("c\0\0\1", 4));
  EXPECT_NE(err_.find("1 bad lines were left out; the first: a.jsonl:2"), std::string::npos) << err_;
  ASSERT_EQ(run("--input a.jsonl --tokenizer byte --output b --json-key text --json-key t --append-eod "
                "--skip-bad-lines --quiet"),
            0);
  EXPECT_EQ(read(path("b_t_document.bin")), read(path("a_t_document.bin")));
  EXPECT_EQ(out_, "");
}

// A pipe is opened once: its writer would die of a second time, and the program wait for ever.
TEST_F(TokenizeProgram, ReadsAPipe) {
  write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n");
  ASSERT_EQ(run("--input p.jsonl --tokenizer byte --output a",
                "mkfifo p.jsonl && { cat a.jsonl > p.jsonl & } && timeout -s KILL 60"),
            0)
      << err_;
  EXPECT_EQ(read(path("a_text_document.bin")), std::string("a\0b\0c\0", 6));
}

// Megatron's words for GPT-2's files give what ours give, and each wrong use of them is named.
TEST_F(TokenizeProgram, VocabAndMergeFiles) {
  const auto golden = std::filesystem::absolute("tests/golden/bpe/gpt2_pair").string();
  const std::string vocab = golden + "/vocab.json", merges = golden + "/merges.txt";
  write("a.jsonl", "{\"text\":\"This program is free software: it's 12345\"}\n");
  ASSERT_EQ(run("--input a.jsonl --output a --tokenizer bpe:" + vocab + "," + merges), 0) << err_;
  const std::string want = read(path("a_text_document.bin"));
  EXPECT_GT(want.size(), 10u);
  const std::string files = " --vocab-file " + vocab + " --merge-file " + merges;
  for (const std::string& type : {std::string(), std::string(" --tokenizer-type GPT2BPETokenizer")}) {
    ASSERT_EQ(run("--input a.jsonl --output b" + files + type), 0) << err_;
    EXPECT_EQ(read(path("b_text_document.bin")), want);
  }
  const struct {
    std::string arguments, message;
  } kWrong[] = {
      {"", "--tokenizer is required"},
      {" --merge-file " + merges, "--vocab-file is missing"},
      {" --tokenizer-type GPT2BPETokenizer --vocab-file " + vocab, "--merge-file is missing"},
      {" --tokenizer-type HFTokenizer" + files, "--merge-file goes with"},
      {" --tokenizer byte" + files, "--tokenizer"},
      {" --tokenizer-type BertWordPiece" + files, "GPT2BPETokenizer"},
  };
  for (const auto& wrong : kWrong) {
    EXPECT_EQ(run("--input a.jsonl --output c" + wrong.arguments), 64) << wrong.arguments;
    EXPECT_NE(err_.find(wrong.message), std::string::npos) << err_;
  }
  EXPECT_EQ(run("--input a.jsonl --output c --vocab-file " + vocab), 65);
  EXPECT_NE(err_.find("is a vocabulary alone"), std::string::npos) << err_;
}

// Of Megatron's words for SentencePiece one puts the model's <s> in front of every document.
TEST_F(TokenizeProgram, Llama2BeginsDocumentsWithBos) {
  write("a.jsonl", "{\"text\":\"tomorrow\"}\n");
  const std::string file = std::filesystem::absolute("tests/golden/sentencepiece/tiny.model").string();
  const std::string words = "--input a.jsonl --append-eod --vocab-file " + file + " --tokenizer-type ";
  if (run(words + "GPTSentencePieceTokenizer --output a") == 64)
    GTEST_SKIP() << err_;  // built without libsentencepiece
  ASSERT_EQ(run(words + "Llama2Tokenizer --output b"), 0) << err_;
  EXPECT_EQ(read(path("b_text_document.bin")), std::string("\1\0", 2) + read(path("a_text_document.bin")));
}

TEST_F(TokenizeProgram, HelpAndVersion) {
  EXPECT_EQ(run("--help"), 0);
  for (const char* word : {"--input", "--tokenizer", "--output", "--json-key", "--append-eod", "--workers",
                           "--skip-bad-lines", "Exit codes"}) {
    EXPECT_NE(out_.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(run("--version"), 0);
  EXPECT_NE(out_.find("tokenize (thinwire)"), std::string::npos) << out_;
}

TEST_F(TokenizeProgram, WrongCommandLinesLeaveWith64) {
  write("a.txt", "x");
  for (const char* arguments :
       {"", "--inptu a.txt", "--input a.txt", "--input a.txt --tokenizer byte",
        "--input a.txt --tokenizer nope --output x", "--input a.txt --tokenizer byte --output x --workers 0",
        "--input a.txt --tokenizer byte --output x --workers two", "--input a.txt --tokenizer byte --output x extra"}) {
    EXPECT_EQ(run(arguments), 64) << arguments;
    EXPECT_EQ(err_.rfind("error: ", 0), 0u) << err_;
    EXPECT_FALSE(exists("x_text_document.bin"));
  }
}

TEST_F(TokenizeProgram, BadDataLeavesWith65) {
  write("a.jsonl", "{}\n");
  EXPECT_EQ(run("--input a.jsonl --tokenizer byte --output x"), 65);
  EXPECT_EQ(
      err_,
      "error: a.jsonl:1: has no key \"text\" (choose keys with --json-key); --skip-bad-lines leaves such lines out\n");
  EXPECT_EQ(run("--input no.txt --tokenizer byte --output x"), 65);
  write("e.txt", "");
  EXPECT_EQ(run("--input e.txt --tokenizer byte --output x"), 65);
  write("t.json", "{}");
  EXPECT_EQ(run("--input a.jsonl --tokenizer bpe:t.json --output x"), 65);
  EXPECT_EQ(err_, "error: t.json: model: is missing\n");
  EXPECT_EQ(std::filesystem::exists(path("x_text_document.bin")) || exists("x_text_document.idx"), false);
}

TEST_F(TokenizeProgram, FailedWritesLeaveNothing) {
  write("a.txt", std::string(4'000'000, 'a'));
  const size_t before = files();
  EXPECT_EQ(run("--input a.txt --tokenizer byte --output x", "ulimit -f 1000 &&"), 74);
  EXPECT_NE(err_.find("cannot write"), std::string::npos) << err_;
  EXPECT_EQ(files(), before + 2);  // the two logs
  write("file", "");
  EXPECT_EQ(run("--input a.txt --tokenizer byte --output file/x"), 73) << err_;
}

}  // namespace
}  // namespace thinwire::test::tokenize_program_test
