// The program `checkpoint`: verify, show, export to and import from Hugging Face.
#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <map>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/program.h"
#include "engine/base/core/text.h"
#include "engine/base/ops/isa.h"
#include "engine/run/checkpoint/checkpoint_store.h"
#include "engine/run/checkpoint/hf_names.h"
#include "engine/run/checkpoint/model_config_json.h"
#include "engine/run/checkpoint/stored_tensors.h"
#include "model/params.h"

namespace thinwire {
namespace {

constexpr char kFooter[] =
    "DIR is a run directory, its checkpoints/ directory, or one checkpoint (step_000123).\n"
    "Exit codes: 0 all good; 64 wrong command line; 65 corrupt or missing checkpoint; 73 directory in use; 74 I/O "
    "error;\n"
    "78 a model that the format cannot express.";

constexpr size_t kSlicesShown = 4;  // of each tensor

// Says for every checkpoint whether it verifies; Error(kBadData) unless all do.
void verify(const std::string& dir) {
  size_t bad = 0;
  for (const FoundCheckpoint& checkpoint : resolve_checkpoint_path(dir)) {
    try {
      const Manifest manifest = verify_checkpoint(checkpoint.path);
      uint64_t bytes = 0;
      for (const ManifestFile& file : manifest.files) bytes += file.bytes;
      std::cout << "ok   " << checkpoint.path << ": step " << manifest.step << ", " << manifest.tensors.size()
                << " tensors, " << bytes << " bytes in " << manifest.files.size() << " files\n";
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadData) throw;  // not the checkpoint's fault: a disk that cannot be read
      ++bad;
      std::cout << "BAD  " << checkpoint.path << ": " << e.what() << "\n";
    }
  }
  if (bad > 0) throw_bad_data(std::to_string(bad) + " of the checkpoints in " + dir + " do not verify");
}

void show(const std::string& dir, bool as_json) {
  const std::string path = resolve_checkpoint_path(dir).front().path;
  if (as_json) {
    read_manifest(path);  // refuses what does not check out
    std::cout << read_file(path + "/" + kManifestName);
    return;
  }
  const Manifest m = read_manifest(path);
  const std::string when = utc_text(static_cast<std::time_t>(m.saved_at));
  std::cout << path << "\nstep " << m.step << ", saved " << when << " by job " << m.job << "\n";
  std::cout << "layout  written by " << m.ranks << (m.ranks == 1 ? " rank" : " ranks");
  if (m.info.is_object() && m.info.contains("layout")) std::cout << ": " << m.info["layout"].dump();
  std::cout << "\n";
  for (const ManifestFile& file : m.files) std::cout << "file  " << file.name << "  " << file.bytes << " bytes\n";
  std::cout << "info  " << m.info.dump(2) << "\n";
  for (const auto& [name, value] : m.integers) std::cout << "integer  " << name << " = " << value << "\n";
  for (const auto& [name, value] : m.reals) std::cout << "real  " << name << " = " << value << "\n";
  for (const auto& [name, value] : m.texts) std::cout << "text  " << name << " (" << value.size() << " bytes)\n";
  // Slices of one tensor are written one after another by each rank, so they are gathered first.
  std::map<std::string, std::vector<const ManifestTensor*>> tensors;
  for (const ManifestTensor& t : m.tensors) tensors[t.name].push_back(&t);
  for (const auto& [name, slices] : tensors) {
    const ManifestTensor& any = *slices.front();
    std::cout << "tensor  " << name << "  " << name_of(any.dtype) << " " << any.place.rows << " x " << any.place.cols;
    if (slices.size() > 1) std::cout << "  in " << slices.size() << " slices:";
    for (size_t i = 0; i < slices.size() && slices.size() > 1; ++i) {
      if (i == kSlicesShown) {
        std::cout << "; ...";
        break;
      }
      std::cout << (i ? "; " : " ") << describe(slices[i]->place);
    }
    std::cout << "\n";
  }
}

// The run's eod_token, else what its tokenizer says, if that is still where it was; -1: none is known. Not one that the
// model does not have.
int64_t end_of_document(const nlohmann::json& info, int64_t vocab) {
  const nlohmann::json none, config = info.value("config", none);
  int64_t id = config.is_object() ? config.value("eod_token", int64_t{-1}) : -1;
  const std::string spec = info.value("tokenizer", "");
  if (id < 0 && !spec.empty()) {
    try {
      id = make_tokenizer(spec, spec == "byte" && vocab == 257)->eod().value_or(-1);
    } catch (const Error& e) {
      log_warning(std::string("warning: eos_token_id of config.json stays null: ") + e.what());
    }
  }
  return id < vocab ? id : -1;
}

void export_hf(const std::string& dir, const std::string& output, const std::string& format, const std::string& dtype) {
  const VerifiedCheckpoint checkpoint = find_newest_valid(dir);
  const ModelConfig config = model_of(checkpoint);
  const ParamList params = list_parameters(config);
  HfMapping mapping(config, params, format == "hf4" ? 4 : 5);
  mapping.set_end_of_document(end_of_document(checkpoint.manifest.info, config.vocab));
  StoredTensors stored(checkpoint.path, checkpoint.manifest);
  const auto source = [&](const std::string& name) {
    std::vector<float> values = stored.read_f32("model/" + name);
    if (static_cast<int64_t>(values.size()) != find_parameter(params, name).count()) {
      throw_bad_data(checkpoint.path + ": tensor \"model/" + name +
                     "\" does not have the size its model configuration gives");
    }
    return values;
  };
  mapping.write_hf(output, source, dtype == "f32" ? StDtype::kF32 : dtype == "bf16" ? StDtype::kBF16 : StDtype::kF16);
  std::cout << "exported step " << checkpoint.manifest.step << " of " << checkpoint.path << " as "
            << hf_model_type(config) << " (" << dtype << ") to " << output << "\n";
  if (mapping.family() == HfFamily::kNeox && !config.tied_head && format == "hf")
    std::cout << "transformers 4 finds the head of gpt_neox only in an export with --format hf4\n";
}

void import_hf(const std::string& input, const std::string& output, int64_t vocab_multiple) {
  const ModelConfig config = read_hf_model(input, vocab_multiple);
  const HfMapping mapping(config, list_parameters(config));
  const HfTensors tensors(input);
  if (!list_checkpoints(output).empty()) throw_busy(output + ": holds checkpoints already; choose a new directory");
  StoreOptions options;
  options.async = false;
  CheckpointStore store(output, std::move(options));
  const auto state = [&](StateVisitor& visitor) {
    mapping.read_hf(tensors, [&](const ParamSpec& param, std::vector<float> values) {
      const View view = param.is_vector ? View(values.data(), DType::f32, {param.cols})
                                        : View(values.data(), DType::f32, {param.rows, param.cols});
      visitor.tensor(GlobalSlice::whole("model/" + param.name, param.rows, param.cols, view));
    });
  };
  store.save(0, state, {{"model", model_config_to_json(config)}, {"imported_from", "hf"}});
  std::cout << "imported " << hf_model_type(config) << " model to " << store.last_save().path
            << " (weights only: start from it with load and finetune)\n";
}

int run(int argc, char** argv) {
  CLI::App app("Verifies, shows, exports and imports checkpoints.", "checkpoint");
  add_version(app, "checkpoint", [] { return isa_name(active_isa()); });
  app.footer(kFooter);
  app.require_subcommand(1);
  std::string dir, output, format = "hf", dtype = "f32";
  int64_t vocab_multiple = 128;
  bool as_json = false;

  CLI::App* verify_command =
      app.add_subcommand("verify", "read every byte of every checkpoint; exit 0 only if all are good");
  verify_command->add_option("DIR", dir)->required();
  CLI::App* show_command = app.add_subcommand("show", "print what the newest checkpoint holds");
  show_command->add_option("DIR", dir)->required();
  show_command->add_flag("--json", as_json, "the manifest as it is");
  CLI::App* export_command =
      app.add_subcommand("export", "write the newest good checkpoint's weights for other programs");
  export_command->add_option("DIR", dir)->required();
  export_command
      ->add_option("--format", format,
                   "hf (config.json and model.safetensors), or hf4: with the names of transformers 4")
      ->check(CLI::IsMember({"hf", "hf4"}))
      ->capture_default_str();
  export_command->add_option("--output", output, "directory to write")->required();
  export_command->add_option("--dtype", dtype)->check(CLI::IsMember({"f32", "bf16", "f16"}))->capture_default_str();
  CLI::App* import_command =
      app.add_subcommand("import", "make a checkpoint (weights only, step 0) of a Hugging Face directory");
  import_command->add_option("HF_DIR", dir)->required();
  import_command->add_option("--output", output, "directory for the checkpoint")->required();
  import_command->add_option("--make-vocab-size-divisible-by", vocab_multiple, "padding of the vocabulary")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  if (const auto code = parse_command_line(app, "checkpoint", argc, argv)) return *code;
  // What a shell makes of a variable that is not set; files below "" would lie in the root of the file system.
  if (dir.empty()) throw_usage("checkpoint: the directory to read has an empty name");
  if (output.empty() && (export_command->parsed() || import_command->parsed()))
    throw_usage("checkpoint: --output has an empty name; give the directory to write");
  if (verify_command->parsed()) verify(dir);
  if (show_command->parsed()) show(dir, as_json);
  if (export_command->parsed()) export_hf(dir, output, format, dtype);
  if (import_command->parsed()) import_hf(dir, output, vocab_multiple);
  finish_printing("checkpoint");
  return 0;
}

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  return thinwire::run_program("checkpoint", [&] { return thinwire::run(argc, argv); });
}
