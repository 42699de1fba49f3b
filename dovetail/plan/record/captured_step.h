#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Tensor as an operation sees it: a view of a storage. `storage` is an index into
/// CapturedStep::storages, or -1 for an undefined tensor.
struct TensorUse {
  int storage = -1;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  ///< from the start of the storage, in elements
  at::ScalarType dtype = at::kFloat;
  bool operator==(const TensorUse&) const = default;
};

/// Argument of an operation: a value, or tensors.
struct CapturedArgument {
  enum class Kind { kValue, kTensor, kTensorList, kOptionalTensorList };
  Kind kind = Kind::kValue;
  c10::IValue value;            ///< value if kValue
  std::vector<TensorUse> uses;  ///< tensors for the other kinds; exactly one if kTensor
};

/// Allocation or deallocation inside an operation. Events are in the order in which they happen on
/// the calling thread.
struct MemoryEvent {
  int allocation = 0;  ///< number of the allocation in its operation, from 0
  int64_t bytes = 0;
  bool ends = false;
  bool operator==(const MemoryEvent&) const = default;
};

struct CapturedOperation {
  c10::OperatorHandle handle;
  std::string name;   ///< operator, as in "aten::mm"
  std::string layer;  ///< LayerScope of the forward operation, also for its backward
  bool backward = false;
  bool random = false;  ///< draws from the default generator
  double seconds = 0;   ///< duration when it was recorded
  bool once = false;    ///< must not run again (base/operation.h)
  std::vector<CapturedArgument> arguments;
  std::vector<int> reads;  ///< storages that it reads, each once
  /// Existing storages that it changes, even if its schema does not declare the write.
  std::vector<int> writes;
  std::vector<int> makes;  ///< storages that it creates
  /// Allocation that holds each of `makes`; -1 for a storage of 0 bytes.
  std::vector<int> makes_allocation;
  std::vector<MemoryEvent> memory;
};

struct CapturedStorage {
  std::string name;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  /// Tensor that holds a storage which existed before the step. Undefined if the step created it.
  at::Tensor external;
  bool declared = false;  ///< listed in StepTensors
  /// Returns true for an undeclared storage that existed before the step. Others may refer to its
  /// memory, so no plan moves it.
  bool is_fixed() const { return external.defined() && !declared; }
};

/// Call of an operator below autograd. `operation` is -1 if the call only created views.
struct CapturedCall {
  c10::OperatorHandle handle;
  int operation = -1;
};

/// One training step as the operators that it calls below autograd. Operators that only create
/// views are left out of `operations`.
struct CapturedStep {
  std::vector<CapturedStorage> storages;
  std::vector<CapturedOperation> operations;
  std::vector<CapturedCall> calls;     ///< all calls in order, with views
  std::vector<TensorUse> results;      ///< tensors that the step returns
  std::vector<at::Tensor> parameters;  ///< all calls in order, with views
  int64_t held_bytes = 0;              ///< tensors that the step returns
};

}  // namespace dovetail::plan
