#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/model/graph.h"

/// Recording of one training step below autograd: its operations, their tensor arguments and their
/// memory. Tensors are identified by their storage.
namespace dovetail::plan {

/// View of a storage, as an operation gets a tensor. `storage` is an index into
/// CapturedStep::storages, or -1 for an undefined tensor.
struct TensorUse {
  int storage = -1;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  ///< from the start of the storage, in elements
  at::ScalarType dtype = at::kFloat;
  bool operator==(const TensorUse&) const = default;
};

/// Argument of a recorded operation: a value, or tensors.
struct CapturedArgument {
  enum class Kind { kValue, kTensor, kTensorList, kOptionalTensorList };
  Kind kind = Kind::kValue;
  c10::IValue value;            ///< the value if `kind` is kValue
  std::vector<TensorUse> uses;  ///< the tensors if `kind` is not kValue; one if kTensor
};

/// Allocation or deallocation during an operation, on the thread that calls it.
struct MemoryEvent {
  /// Number of the allocation within its operation, from 0. A deallocation has the number of the
  /// allocation that it ends.
  int allocation = 0;
  int64_t bytes = 0;
  bool ends = false;  ///< true for a deallocation
  bool operator==(const MemoryEvent&) const = default;
};

/// Recorded call of an operator, except calls that only create views. Storages are indices into
/// CapturedStep::storages.
struct CapturedOperation {
  c10::OperatorHandle handle;
  std::string name;        ///< operator, as in "aten::mm"
  bool grad_mode = false;  ///< at::GradMode when it was called; some operators then save more
  /// Layer of the model (LayerScope in base/layer_scope.h). For backward, this is the layer of its
  /// forward operation.
  std::string layer;
  bool backward = false;  ///< called by autograd's backward pass
  bool random = false;    ///< draws from the default random generator
  double seconds = 0;     ///< duration during the recording
  bool once = false;      ///< must not run again (base/operation.h)
  std::vector<CapturedArgument> arguments;
  std::vector<int> reads;  ///< storages that it reads, each once
  /// Storages from before the operation that it changes. This includes writes that its schema does
  /// not declare.
  std::vector<int> writes;
  std::vector<int> makes;         ///< storages that it creates
  std::vector<int> makes_result;  ///< per storage in `makes`: index of the result that has it
  /// Per storage in `makes`: the number of the allocation (MemoryEvent) that holds it; -1 if it has
  /// 0 bytes.
  std::vector<int> makes_allocation;
  /// Allocations and deallocations, in the order in which they happened.
  std::vector<MemoryEvent> memory;
};

/// Storage that a recorded step uses.
struct CapturedStorage {
  std::string name;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  /// Tensor that has this storage, if it existed before the step. Undefined if the step created it.
  at::Tensor external;
  bool declared = false;  ///< listed in StepTensors (plan/record/capture.h)
  /// Made by the step's function from its own numbers (torch.tensor), and so anew in each step.
  bool given = false;
  /// On another device than the step: on the CPU in a step on a GPU. No plan has a place for it.
  bool elsewhere = false;
  /// Returns true if the storage existed before the step and is not declared. No plan moves such a
  /// storage, since code outside the step may refer to its memory.
  bool is_fixed() const { return external.defined() && !declared; }
};

/// Call of an operator below autograd. `operation` is an index into CapturedStep::operations, or -1
/// if the call only created views. `given` is the storage that the call brings into the step
/// (CapturedStorage::given), or -1.
struct CapturedCall {
  c10::OperatorHandle handle;
  int operation = -1, given = -1;
};

/// One recorded training step. Calls that only create views have no entry in `operations`.
struct CapturedStep {
  c10::Device device = c10::kCPU;  ///< where the parameters are, and the operations run
  std::vector<CapturedStorage> storages;
  std::vector<CapturedOperation> operations;
  std::vector<CapturedCall> calls;  ///< all calls in order, including those that only create views
  std::vector<TensorUse> results;   ///< tensors that the step's function returns
  std::vector<at::Tensor> parameters;  ///< the parameters in StepTensors
  /// Maximum bytes that operations hold outside the plan at the same time (HeldMemory in
  /// base/operation.h).
  int64_t held_bytes = 0;
};

}  // namespace dovetail::plan
