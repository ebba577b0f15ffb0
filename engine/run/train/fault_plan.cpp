// Parses and carries out planned failures.
#include "engine/run/train/fault_plan.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/run/checkpoint/checkpoint_store.h"

namespace thinwire {

FaultPlan::FaultPlan(const std::string& text, bool allowed, int rank) {
  if (text.empty() || text == "null" || text == "[]") return;
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) throw_bad_config("faults: a list of {\"at\", \"step\", \"do\"} is expected");
  if (!allowed) throw_bad_config("faults: injecting failures needs --allow-faults on the command line");
  for (const nlohmann::json& entry : list) {
    const std::string where = "faults: " + entry.dump();
    if (!entry.is_object() || !entry.contains("at") || !entry["at"].is_string() || !entry.contains("do") ||
        !entry["do"].is_string()) {
      throw_bad_config(where + ": needs \"at\" and \"do\"");
    }
    for (const auto& [key, value] : entry.items())
      if (key != "at" && key != "do" && key != "step" && key != "rank")
        throw_bad_config(where + ": unknown key " + key + "; there are at, step, rank and do");
    Fault fault;
    fault.at = entry["at"], fault.action = entry["do"];
    if (entry.contains("step")) {
      if (!entry["step"].is_number_integer() || entry["step"] < 0)
        throw_bad_config(where + ": \"step\" is a whole number, 0 or more");
      fault.step = entry["step"];
    }
    const bool save_point =
        std::find(std::begin(kSavePoints), std::end(kSavePoints), fault.at) != std::end(kSavePoints);
    constexpr std::string_view points[] = {"step.begin", "step.end", "grad", "weights", "compute", "loss"};
    if (!save_point && std::find(std::begin(points), std::end(points), fault.at) == std::end(points))
      throw_bad_config(where + ": unknown point");
    for (const auto& [word, unit] : {std::pair("delay", "SECONDS"), std::pair("scale", "FACTOR")}) {
      const std::string start = std::string(word) + ":";
      if (fault.action != word && fault.action.rfind(start, 0) != 0) continue;
      const std::string amount = fault.action.substr(std::min(fault.action.size(), start.size()));
      char* end = nullptr;
      fault.amount = std::strtod(amount.c_str(), &end);
      if (amount.empty() || *end != '\0' || !(fault.amount >= 0.0))
        throw_bad_config(where + ": " + start + unit + " is expected");
      fault.action = word;
      break;
    }
    constexpr std::string_view known[] = {"kill9", "stop", "segv", "abort", "enospc", "nomem",
                                          "delay", "nan",  "inf",  "flip",  "scale"};
    if (std::find(std::begin(known), std::end(known), fault.action) == std::end(known))
      throw_bad_config(where + ": unknown action");
    if ((fault.action == "nan" || fault.action == "inf") != (fault.at == "grad"))
      throw_bad_config(where + ": nan and inf go with the point grad");
    if ((fault.action == "flip") != (fault.at == "weights"))
      throw_bad_config(where + ": flip goes with the point weights");
    if ((fault.action == "scale") != (fault.at == "loss")) throw_bad_config(where + ": scale goes with the point loss");
    if (entry.contains("rank")) {
      if (!entry["rank"].is_number_integer() || entry["rank"] < 0)
        throw_bad_config(where + ": \"rank\" is a whole number, 0 or more");
      fault.rank = entry["rank"];
    }
    if (fault.rank != rank) continue;
    log_warning("fault planned: " + entry.dump());
    faults_.push_back(fault);
  }
}

void FaultPlan::reach(std::string_view point) {
  if (point == "save.begin") saving_step_ = step_;
  const int64_t step = point.rfind("save.", 0) == 0 ? saving_step_ : step_;
  for (const Fault& f : faults_) {
    if (f.at != point || f.at == "grad" || (f.step >= 0 && f.step != step)) continue;
    log_warning("fault: " + f.action + " at " + f.at + ", step " + std::to_string(step));
    if (f.action == "kill9") kill(getpid(), SIGKILL);
    if (f.action == "stop") raise(SIGSTOP);
    if (f.action == "segv") raise(SIGSEGV);
    if (f.action == "abort") std::abort();
    if (f.action == "enospc") throw_io("injected: no space left on device at " + f.at);
    if (f.action == "nomem") throw std::bad_alloc();
    if (f.action == "delay") std::this_thread::sleep_for(std::chrono::duration<double>(f.amount));
  }
}

double FaultPlan::loss_factor() const {
  double factor = 1.0;
  for (const Fault& f : faults_)
    if (f.at == "loss" && (f.step < 0 || f.step == step_)) factor *= f.amount;
  return factor;
}

bool FaultPlan::flips_weights() const {
  return std::any_of(faults_.begin(), faults_.end(),
                     [&](const Fault& f) { return f.at == "weights" && (f.step < 0 || f.step == step_); });
}

float FaultPlan::poison() const {
  for (const Fault& f : faults_) {
    if (f.at != "grad" || (f.step >= 0 && f.step != step_)) continue;
    return f.action == "nan" ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  }
  return 0.0f;
}

}  // namespace thinwire
