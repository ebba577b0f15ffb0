// The program `tokenize`: text files in, the .bin / .idx pairs that training reads out.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "data/tokenizer/tokenize_files.h"
#include "data/tokenizer/tokenize_progress.h"
#include "engine/base/core/cpus.h"
#include "engine/base/core/error.h"
#include "engine/base/core/program.h"

namespace thinwire {
namespace {

volatile std::sig_atomic_t g_signal = 0;  // set by the handler, read between jobs, so that temporary files are removed

extern "C" void remember_signal(int signal) {
  static volatile std::sig_atomic_t first_ms = 0;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int ms = static_cast<int>((now.tv_sec * 1000 + now.tv_nsec / 1000000) & 0x7fffffff);
  if (g_signal == 0) {
    first_ms = ms;
    g_signal = signal;
    return;
  }
  // Batch systems deliver one wish several times; a later one ends a program that waits for a pipe.
  if (((ms - first_ms) & 0x7fffffff) <= (signal == SIGTERM ? 2000 : 250)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

constexpr const char* kFooter =
    R"(Writes PREFIX_<key>_document.bin and .idx, the format of Megatron-LM and GPT-NeoX; give PREFIX_<key>_document as data_path.
  .txt    every paragraph (blank lines between) is a document, key text; its bytes are kept, without the last line end
  .jsonl  every line is a JSON object, its string under KEY is a document
Tokenizers: byte (256 ids; 257 with --append-eod), bpe:tokenizer.json (GPT-NeoX, Llama 3 ...), bpe:vocab.json,merges.txt (GPT-2),
sentencepiece:FILE.model. Megatron's words work too: --vocab-file vocab.json --merge-file merges.txt. What a tokenizer.json puts
around a text (Llama 3: <|begin_of_text|>) stands around every document, in front of the end that --append-eod adds.
--tokenizer-type Llama2Tokenizer puts the model's <s> in front of every document, as in Megatron-LM.
Exit codes: 0 done, 64 wrong command line, 65 bad input or tokenizer (file:line is named), 73 cannot write, 74 I/O error, 75 interrupted.
Example: tokenize --input books.txt --tokenizer byte --output data/books)";

void tokenize(const std::string& spec, const TokenizeOptions& options, bool quiet) {
  const auto tokenizer = make_tokenizer(spec, options.append_eod);
  if (options.prepend_bos && !tokenizer->bos())
    throw_usage("tokenize: Llama2Tokenizer begins every document with the model's bos, and " + spec +
                " sets none; GPTSentencePieceTokenizer adds nothing");
  TokenizeProgressLine line;
  const TokenizeSummary summary = tokenize_files(*tokenizer, options, [&](const TokenizeProgress& state) {
    if (g_signal != 0) {
      line.finish();
      throw Error(ExitCode::kPreempted, "interrupted by signal " + std::to_string(g_signal) + "; nothing was written");
    }
    if (!quiet) line.update(state);
  });
  line.finish();
  const double seconds = line.seconds();
  if (summary.skipped_lines > 0) {
    std::fprintf(stderr, "warning: %s bad lines were left out; the first: %s\n",
                 with_commas(summary.skipped_lines).c_str(), summary.first_skipped.c_str());
  }
  if (summary.empty_documents > 0) {
    std::fprintf(stderr, "warning: %s empty documents were left out\n", with_commas(summary.empty_documents).c_str());
  }
  if (quiet) return;
  for (const TokenizeOutput& output : summary.outputs) {
    std::printf("wrote %s.bin/.idx: %s documents, %s tokens (ids below %lld%s)\n", output.prefix.c_str(),
                with_commas(output.documents).c_str(), with_commas(output.tokens).c_str(),
                static_cast<long long>(tokenizer->vocab_size()),
                options.append_eod ? (", end of document " + std::to_string(*tokenizer->eod())).c_str() : "");
  }
  std::printf("%.1f MB in %.2f s, %.1f MB/s\n", static_cast<double>(summary.bytes) / 1e6, seconds,
              static_cast<double>(summary.bytes) / 1e6 / std::max(seconds, 1e-9));
}

// Megatron-LM's and GPT-NeoX's way to name a tokenizer. "" where it is not used.
std::string spec_of_files(const std::string& type, const std::string& vocab, const std::string& merges) {
  if (type.empty() && vocab.empty() && merges.empty()) return "";
  if (vocab.empty()) throw_usage("tokenize: --vocab-file is missing");
  if (type.empty() ? !merges.empty() : type == "GPT2BPETokenizer") {
    if (merges.empty())
      throw_usage("tokenize: --merge-file is missing: GPT2BPETokenizer has vocab.json and merges.txt");
    if (!vocab.ends_with(".json")) throw_usage("tokenize: --vocab-file " + vocab + ": a vocab.json is needed");
    return "bpe:" + vocab + "," + merges;
  }
  if (!merges.empty()) throw_usage("tokenize: --merge-file goes with --tokenizer-type GPT2BPETokenizer");
  const bool bpe = type.empty() || type == "HFTokenizer" || type == "HuggingFaceTokenizer";
  return (bpe ? "bpe:" : "sentencepiece:") + vocab;
}

int run(int argc, char** argv) {
  TokenizeOptions options;
  options.json_keys.clear();
  options.workers = std::min(usable_cpus(), 8);
  std::string spec, type, vocab, merges;
  bool quiet = false;
  CLI::App app("Turns text into token files for training.", "tokenize");
  app.footer(kFooter);
  add_version(app, "tokenize", [] { return std::string("any (no kernels)"); });
  app.add_option("--input", options.inputs, "Text files: F.txt, F.jsonl; several in a row or repeated")
      ->required()
      ->expected(1, -1)
      ->type_name("FILE");
  CLI::Option* named =
      app.add_option("--tokenizer", spec,
                     "byte | bpe:tokenizer.json | bpe:vocab.json,merges.txt | sentencepiece:FILE.model")
          ->type_name("SPEC");
  app.add_option("--vocab-file", vocab, "Instead of --tokenizer, as in Megatron-LM")
      ->type_name("FILE")
      ->excludes(named);
  app.add_option("--merge-file", merges, "The merges of a GPT-2 vocab.json")->type_name("FILE")->excludes(named);
  app.add_option("--tokenizer-type", type, "What the files are [GPT2BPETokenizer with --merge-file, else HFTokenizer]")
      ->check(CLI::IsMember({"GPT2BPETokenizer", "HFTokenizer", "HuggingFaceTokenizer", "SPMTokenizer",
                             "SentencePieceTokenizer", "Llama2Tokenizer", "GPTSentencePieceTokenizer"}))
      ->excludes(named);
  app.add_option("--output", options.prefix, "Where to write: a path prefix; missing directories are made")
      ->required()
      ->type_name("PREFIX");
  app.add_option("--json-key,--json-keys", options.json_keys,
                 "Key of the text in .jsonl lines, repeatable: a token file each [text]")
      ->expected(1, -1)
      ->type_name("KEY");
  app.add_flag("--append-eod", options.append_eod, "End every document with the tokenizer's end-of-document token");
  app.add_flag("--skip-bad-lines", options.skip_bad_lines,
               "Count .jsonl lines that are no JSON or lack the key instead of stopping");
  app.add_option("--workers", options.workers,
                 "Threads that encode, else one a usable core, 8 at most; the output does not depend on it")
      ->check(CLI::Range(1, 256));
  app.add_flag("--quiet", quiet, "No progress and no summary");
  if (const auto code = parse_command_line(app, "tokenize", argc, argv)) return *code;
  if (spec.empty()) spec = spec_of_files(type, vocab, merges), options.prepend_bos = type == "Llama2Tokenizer";
  if (spec.empty()) throw_usage("tokenize: --tokenizer is required");
  if (options.json_keys.empty()) options.json_keys = {"text"};
  std::signal(SIGINT, remember_signal);
  std::signal(SIGTERM, remember_signal);
  tokenize(spec, options, quiet);
  return 0;
}

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  return thinwire::run_program("tokenize", [&] { return thinwire::run(argc, argv); });
}
