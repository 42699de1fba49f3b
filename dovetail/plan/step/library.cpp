#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/byte_size.h"
#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/layer_scope.h"
#include "dovetail/plan/solve/plan_cache.h"
#include "dovetail/plan/step/memory_record.h"
#include "dovetail/plan/step/plan_text.h"
#include "dovetail/plan/step/planned_step.h"

/// torch.classes.dovetail.PlannedStep: planned steps whose function is Python's
/// (python/dovetail/plan.py). It depends on no version of Python: the function is a pointer from
/// ctypes.
namespace dovetail::plan {

namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

PlannedStep::Options options_of(const nlohmann::json& json) {
  PlannedStep::Options out{.budget = json.at("budget"),
                           .folder = json.at("folder").get<std::string>(),
                           .offload = false,
                           .recompute = false,
                           .compress = false,
                           .compress_mxfp8 = false,
                           .algorithms = false,
                           .plans = PlanCache::default_folder(),
                           .solve_s = json.at("solve_s"),
                           .other_sizes = PlannedStep::OtherSizes::kRunWithoutPlan};
  if (const std::string bytes = json.at("host_bytes"); !bytes.empty())
    user_check((out.host_bytes = parse_byte_size(bytes)).has_value(),
               "host_bytes is \"{}\", but must be a size such as \"4GiB\"", bytes);
  std::string known;
  for (const auto& [name, allowed] : PlannedStep::kTechniques)
    known += (known.empty() ? "" : ", ") + std::string(name);
  for (const std::string wanted : json.at("allow")) {
    bool found = false;
    for (const auto& [name, allowed] : PlannedStep::kTechniques) {
      if (name != wanted) continue;
      out.*allowed = found = true;
    }
    user_check(found, "allow has \"{}\"; the techniques are {}", wanted, known);
  }
  return out;
}

Named named(const std::vector<std::string>& names, const std::vector<at::Tensor>& tensors) {
  Named out;
  for (size_t i = 0; i < names.size(); ++i) out.emplace_back(names[i], tensors.at(i));
  return out;
}

class LibraryStep : public torch::CustomClassHolder {
 public:
  /// `callback`: address of a function without arguments. It runs Python's function and returns 1,
  /// or 0 if the function raised an exception.
  LibraryStep(const std::string& options, int64_t callback)
      : call_(reinterpret_cast<int (*)()>(callback)) {  // NOLINT(performance-no-int-to-ptr)
    keep_freed_memory();
    step_.emplace(
        [this](const std::vector<at::Tensor>& inputs) {
          inputs_ = inputs;
          const int done = call_();
          inputs_.clear();
          outside_.reset();
          while (!scopes_.empty()) leave_layer();
          if (done != 1) throw std::runtime_error("the step's function raised an exception");
        },
        [this] { return tensors_; }, options_of(nlohmann::json::parse(options)));
  }

  bool records() const { return step_->records(); }
  void set_tensors(const std::vector<std::string>& parameter_names,
                   const std::vector<at::Tensor>& parameters,
                   const std::vector<std::string>& state_names,
                   const std::vector<at::Tensor>& state) {
    tensors_ = {.inputs = {},
                .parameters = named(parameter_names, parameters),
                .state = named(state_names, state)};
  }
  void run(const std::vector<std::string>& names, const std::vector<at::Tensor>& inputs) {
    try {
      step_->run(named(names, inputs), {});
    } catch (const UserError& error) {
      if (error.help().empty()) throw;
      throw UserError(fmt::format("{}; {}", error.what(), error.help()));
    }
  }
  std::vector<at::Tensor> inputs() const { return inputs_; }

  /// Sets whether operators are hidden from the plan. They then compute in memory outside it.
  void set_outside(bool outside) {
    outside_.reset();
    if (outside) outside_.emplace(c10::DispatchKey::Fake);
  }

  void enter_layer(const std::string& name) {
    scopes_.push_back(std::make_unique<LayerScope>(name));
  }
  void leave_layer() {
    if (!scopes_.empty()) scopes_.pop_back();
  }

  /// Returns the content of memory_plan.json, or an empty text while there is no plan.
  std::string report() const {
    if (!step_->report()) return "";
    nlohmann::ordered_json record = to_json(*step_->report());
    record.update(memory_record(step_->view()));
    return record.dump();
  }
  /// Returns the tables of `dovetail plan`, or an empty text while there is no plan.
  std::string text() const {
    if (!step_->report()) return "";
    return plan_text(*step_->report(), step_->view(), {.layers = true, .curve = true});
  }
  void write(const std::string& folder) const { step_->write(folder); }

 private:
  int (*call_)();
  StepTensors tensors_;
  std::vector<at::Tensor> inputs_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> outside_;
  std::vector<std::unique_ptr<LayerScope>> scopes_;
  std::optional<PlannedStep> step_;
};

}  // namespace

}  // namespace dovetail::plan

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::plan::LibraryStep;
  m.class_<LibraryStep>("PlannedStep")
      .def(torch::init<const std::string&, int64_t>())
      .def("records", &LibraryStep::records)
      .def("set_tensors", &LibraryStep::set_tensors)
      .def("run", &LibraryStep::run)
      .def("inputs", &LibraryStep::inputs)
      .def("set_outside", &LibraryStep::set_outside)
      .def("enter_layer", &LibraryStep::enter_layer)
      .def("leave_layer", &LibraryStep::leave_layer)
      .def("report", &LibraryStep::report)
      .def("text", &LibraryStep::text)
      .def("write", &LibraryStep::write);
}
