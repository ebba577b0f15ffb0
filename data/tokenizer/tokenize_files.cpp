// Reader, encoders and writer of tokenize_files.h. Results are taken in the order of the input, and so are errors: the
// first of them in the input is reported.
#include "data/tokenizer/tokenize_files.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "data/token_file_writer.h"
#include "data/tokenizer/text_reader.h"
#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kJobBytes = size_t{256} << 10;       // text of a job
constexpr size_t kOpenBytes = size_t{12} << 20;       // text of all jobs that are not written yet
constexpr size_t kSequenceTokens = size_t{16} << 20;  // longer documents go on in further sequences

enum class Format { kParagraphs, kJsonLines };

struct Input {
  std::string path;
  Format format;
};

struct Job {
  const Input* input = nullptr;
  std::vector<TextPiece> pieces;  // of documents, or lines of JSON
  size_t text_bytes = 0;          // of the pieces
  uint64_t source_bytes = 0;      // of the input
};

struct Encoded {
  size_t output = 0;
  std::vector<int32_t> ids;
  bool ends_document = true;
  bool has_text = false;  // some ids are the text's, not only those put before and after a text
};

struct Result {
  std::vector<Encoded> pieces;
  uint64_t source_bytes = 0;
  int64_t skipped = 0, empty = 0;
  std::string first_skipped;
};

Input classify(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".txt" || ending == ".text") return {path, Format::kParagraphs};
  if (ending == ".jsonl" || ending == ".json" || ending == ".ndjson") return {path, Format::kJsonLines};
  throw_usage("--input " + path +
              ": the name must end in .txt (a document per paragraph) or .jsonl (a JSON object per line)" +
              (ending == ".gz" || ending == ".zst" || ending == ".xz" ? "; unpack it first" : ""));
}

// Where texts go: output k has the key keys[k]. The first json_outputs keys are those of JSON lines.
struct Plan {
  std::vector<Input> inputs;
  std::vector<std::string> keys;
  size_t paragraph_output = 0;  // of the key "text"
  size_t json_outputs = 0;
};

Plan make_plan(const TokenizeOptions& options) {
  Plan plan;
  for (const std::string& path : options.inputs) plan.inputs.push_back(classify(path));
  const auto has = [&](Format format) {
    return std::any_of(plan.inputs.begin(), plan.inputs.end(), [&](const Input& i) { return i.format == format; });
  };
  if (plan.inputs.empty()) throw_usage("--input names no file");
  if (options.prefix.empty() || options.prefix.back() == '/') {
    throw_usage("--output '" + options.prefix + "' must be a path prefix such as data/books");
  }
  if (has(Format::kJsonLines)) {
    plan.keys = options.json_keys;
    for (size_t i = 0; i < plan.keys.size(); ++i) {
      if (plan.keys[i].empty() || plan.keys[i].find('/') != std::string::npos) {
        throw_usage("--json-key '" + plan.keys[i] + "' cannot be part of a file name");
      }
      if (std::find(plan.keys.begin(), plan.keys.begin() + static_cast<ptrdiff_t>(i), plan.keys[i]) !=
          plan.keys.begin() + static_cast<ptrdiff_t>(i)) {
        throw_usage("--json-key " + plan.keys[i] + " is given twice");
      }
    }
  } else if (options.json_keys != std::vector<std::string>{"text"}) {
    throw_usage("--json-key has no meaning without a .jsonl input (paragraphs of a .txt go to the key text)");
  }
  plan.json_outputs = plan.keys.size();
  if (has(Format::kParagraphs)) {
    const auto found = std::find(plan.keys.begin(), plan.keys.end(), "text");
    plan.paragraph_output = static_cast<size_t>(found - plan.keys.begin());
    if (found == plan.keys.end()) plan.keys.push_back("text");
  }
  return plan;
}

// Cuts inputs into jobs of about kJobBytes.
class JobReader {
 public:
  explicit JobReader(const std::vector<Input>& inputs) : inputs_(inputs) {}
  // False at the end of the last input. Where it throws, the job holds what was read before.
  bool next(Job& job) {
    job = {};
    if (at_ == inputs_.size()) return false;
    job.input = &inputs_[at_];
    if (!reader_ && job.input->format == Format::kParagraphs)
      reader_ = std::make_unique<ParagraphReader>(job.input->path);
    if (!reader_) reader_ = std::make_unique<LineReader>(job.input->path);
    bool more = true;
    for (TextPiece piece; job.text_bytes < kJobBytes && (more = reader_->next(piece));) {
      job.text_bytes += piece.text.size();
      job.pieces.push_back(std::move(piece));
    }
    job.source_bytes = reader_->bytes_read() - std::exchange(position_, reader_->bytes_read());
    if (!more) reader_.reset(), position_ = 0, ++at_;
    return true;
  }

 private:
  const std::vector<Input>& inputs_;
  size_t at_ = 0;
  std::unique_ptr<PieceReader> reader_;  // of inputs_[at_], once it is opened
  uint64_t position_ = 0;                // bytes of it that are in jobs
};

class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, const TokenizeOptions& options, const Plan& plan)
      : tokenizer_(tokenizer),
        options_(options),
        plan_(plan),
        json_keys_(plan.keys.begin(), plan.keys.begin() + static_cast<ptrdiff_t>(plan.json_outputs)) {}

  Result run(Job& job) const {
    Result result;
    result.source_bytes = job.source_bytes;
    for (TextPiece& piece : job.pieces) {
      if (job.input->format == Format::kParagraphs) {
        encode(piece.text, plan_.paragraph_output, piece.starts_document, piece.ends_document, result);
      } else {
        encode_line(piece, job.input->path, result);
      }
      std::string().swap(piece.text);
    }
    return result;
  }

 private:
  void encode(std::string_view text, size_t output, bool starts_document, bool ends_document, Result& result) const {
    const size_t first = result.pieces.size();
    const auto add = [&](std::string_view piece, bool ends) {
      const bool further = !starts_document || result.pieces.size() > first;
      std::vector<int32_t> ids = further ? tokenizer_.encode_further(piece) : tokenizer_.encode(piece);
      const bool has_text = !ids.empty();
      result.pieces.push_back({output, std::move(ids), ends, has_text});
    };
    while (text.size() > kPieceBytes) {
      const size_t cut = safe_cut(text, kPieceBytes);
      add(text.substr(0, cut), false);
      text.remove_prefix(cut);
    }
    add(text, ends_document);
    if (starts_document) {
      const auto before = tokenizer_.before_text();
      std::vector<int32_t>& ids = result.pieces[first].ids;
      ids.insert(ids.begin(), before.begin(), before.end());
      if (options_.prepend_bos) ids.insert(ids.begin(), *tokenizer_.bos());
    }
    if (ends_document) {
      const auto after = tokenizer_.after_text();
      std::vector<int32_t>& ids = result.pieces.back().ids;
      ids.insert(ids.end(), after.begin(), after.end());
      if (options_.append_eod) ids.push_back(*tokenizer_.eod());
    }
  }

  void encode_line(const TextPiece& line, const std::string& path, Result& result) const {
    std::vector<std::string> texts;
    try {
      texts = parse_json_line(line.text, json_keys_, path, line.line);
    } catch (const Error& e) {
      if (!options_.skip_bad_lines)
        throw Error(e.code(), std::string(e.what()) + "; --skip-bad-lines leaves such lines out");
      if (result.skipped++ == 0) result.first_skipped = e.what();
      return;
    }
    for (size_t k = 0; k < texts.size(); ++k) {
      if (texts[k].empty()) {
        ++result.empty;
      } else {
        encode(texts[k], k, true, true, result);
      }
    }
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const Plan& plan_;
  std::vector<std::string> json_keys_;
};

// Joins the pieces of a document into one sequence, or into several of about kSequenceTokens.
class DocumentWriter {
 public:
  DocumentWriter(const std::string& prefix, int64_t vocab) : writer_(prefix, vocab) {}
  // False: with this piece a document ends of whose text the tokenizer keeps nothing (blanks, for SentencePiece). As in
  // Megatron it is left out, together with the ids before and after a text.
  bool add(Encoded piece) {
    has_text_ = has_text_ || piece.has_text;
    if (piece.ends_document && !std::exchange(has_text_, false)) {
      open_.clear();
      return false;
    }
    if (!open_.empty() || !piece.ends_document) {
      open_.insert(open_.end(), piece.ids.begin(), piece.ids.end());
      if (!piece.ends_document && open_.size() < kSequenceTokens) return true;
      writer_.add_sequence(open_);
      open_.clear();
      if (piece.ends_document) open_.shrink_to_fit();
    } else if (!piece.ids.empty()) {
      writer_.add_sequence(piece.ids);
    }
    if (piece.ends_document) writer_.end_document();
    return true;
  }
  TokenFileWriter& writer() { return writer_; }

 private:
  TokenFileWriter writer_;
  std::vector<int32_t> open_;  // the sequence so far
  bool has_text_ = false;      // of the document so far
};

// Threads that run tasks in the order of add(). The destructor drops those that wait and joins the threads.
class Crew {
 public:
  Crew() = default;
  explicit Crew(size_t threads) : Crew() {  // so that the destructor joins what runs where a thread cannot start
    while (threads_.size() < threads) threads_.emplace_back([this] { work(); });
  }
  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  std::future<Result> add(std::packaged_task<Result()> task) {
    std::future<Result> result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return result;
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (stopped_) return;
      std::packaged_task<Result()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Result()>> tasks_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

TokenizeSummary tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                               const std::function<void(const TokenizeProgress&)>& progress) {
  const Plan plan = make_plan(options);
  TW_CHECK(options.workers > 0, "workers ", options.workers);
  TW_CHECK(!options.append_eod || tokenizer.eod(), "append_eod without an end-of-document token");
  TW_CHECK(!options.prepend_bos || tokenizer.bos(), "prepend_bos without such a token");
  TokenizeProgress state;
  for (const Input& input : plan.inputs) {
    std::error_code ignored;
    if (std::filesystem::is_fifo(input.path, ignored)) continue;  // to open a pipe twice loses what is in it
    const ByteSource readable(input.path);  // a file that cannot be opened is reported now, not after hours
    const auto size = std::filesystem::file_size(input.path, ignored);
    if (!ignored) state.total_bytes += size;
  }

  std::vector<std::unique_ptr<DocumentWriter>> writers;
  TokenizeSummary summary;
  for (const std::string& key : plan.keys) {
    summary.outputs.push_back({options.prefix + "_" + key + "_document"});
    writers.push_back(std::make_unique<DocumentWriter>(summary.outputs.back().prefix, tokenizer.vocab_size()));
  }

  const auto workers = static_cast<size_t>(options.workers);
  const Encoder encoder(tokenizer, options, plan);
  {
    struct Open {
      size_t bytes;
      std::future<Result> result;
    };
    std::deque<Open> open;  // in the order of the input
    size_t open_bytes = 0;
    Crew crew(workers);
    const auto take = [&] {
      Result result = open.front().result.get();
      open_bytes -= open.front().bytes;
      open.pop_front();
      for (Encoded& piece : result.pieces) {
        const bool ends = piece.ends_document;
        const auto tokens = static_cast<int64_t>(piece.ids.size());
        if (!writers[piece.output]->add(std::move(piece))) {
          ++summary.empty_documents;
          continue;
        }
        state.documents += ends ? 1 : 0;
        state.tokens += tokens;
      }
      state.bytes += result.source_bytes;
      if (summary.skipped_lines == 0) summary.first_skipped = result.first_skipped;
      summary.skipped_lines += result.skipped;
      summary.empty_documents += result.empty;
      if (progress) progress(state);
    };
    const auto send = [&](Job job) {
      const auto full = [&] { return open.size() > 2 * workers + 1 || open_bytes + job.text_bytes > kOpenBytes; };
      const auto ready = [&] {
        return open.front().result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
      };
      while (!open.empty() && (full() || ready())) take();
      const size_t bytes = job.text_bytes;
      open_bytes += bytes;
      std::packaged_task<Result()> task([&encoder, job = std::move(job)]() mutable { return encoder.run(job); });
      open.push_back({bytes, crew.add(std::move(task))});
    };
    JobReader reader(plan.inputs);
    for (Job job;;) {
      bool more = false;
      try {
        more = reader.next(job);
      } catch (...) {
        send(std::move(job));
        while (!open.empty()) take();  // what is wrong with a line before it is reported first
        throw;
      }
      if (!more) break;
      send(std::move(job));
    }
    while (!open.empty()) take();
  }
  for (size_t k = 0; k < writers.size(); ++k) {
    TokenizeOutput& output = summary.outputs[k];
    output.documents = writers[k]->writer().documents();
    output.tokens = writers[k]->writer().tokens();
    if (output.tokens == 0) {
      throw_bad_data(plan.inputs.front().path + (plan.inputs.size() > 1 ? " and the other inputs hold" : " holds") +
                     " no text for '" + plan.keys[k] + "': nothing to tokenize, nothing was written");
    }
  }
  for (auto& writer : writers) writer->writer().finalize();
  summary.bytes = state.bytes;
  return summary;
}

}  // namespace thinwire
