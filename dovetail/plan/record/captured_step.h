#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// A tensor as an operation saw it: a view of a storage. `storage` is -1 for an undefined tensor.
struct TensorUse {
  int storage = -1;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  ///< in elements
  at::ScalarType dtype = at::kFloat;
  bool operator==(const TensorUse&) const = default;
};

/// An argument of an operation: a value, or tensors.
struct CapturedArgument {
  enum class Kind { kValue, kTensor, kTensorList, kOptionalTensorList };
  Kind kind = Kind::kValue;
  c10::IValue value;            ///< of kValue
  std::vector<TensorUse> uses;  ///< one for kTensor
};

/// An allocation inside an operation, or the end of one, in the order in which they happened on the
/// calling thread.
struct MemoryEvent {
  int allocation = 0;  ///< counted from 0 within the operation
  int64_t bytes = 0;
  bool ends = false;
  bool operator==(const MemoryEvent&) const = default;
};

struct CapturedOperation {
  c10::OperatorHandle handle;
  std::string name;   ///< "aten::mm"
  std::string layer;  ///< the LayerScope of the forward operation, also of its backward
  bool backward = false;
  bool random = false;  ///< draws from the default generator
  double seconds = 0;   ///< that it took when it was recorded
  bool once = false;    ///< may not run again (base/operation.h)
  std::vector<CapturedArgument> arguments;
  std::vector<int> reads;  ///< storages, each once
  std::vector<int>
      writes;  ///< storages that existed before and are changed, with or without a word of it
  std::vector<int> makes;  ///< storages that it makes
  std::vector<int>
      makes_allocation;  ///< for each of `makes` the allocation that it lies in, or -1: no bytes
  std::vector<MemoryEvent> memory;
};

struct CapturedStorage {
  std::string name;
  int64_t bytes = 0;
  TensorKind kind = TensorKind::kActivation;
  at::Tensor external;    ///< a tensor that holds a storage that the step found; undefined if the
                          ///< step made it
  bool declared = false;  ///< in StepTensors
  /// True for a storage that the step found undeclared: others may refer to its memory, so no plan
  /// moves it.
  bool is_fixed() const { return external.defined() && !declared; }
};

/// A call that came below autograd: an operation, or, with -1, one that only made views.
struct CapturedCall {
  c10::OperatorHandle handle;
  int operation = -1;
};

/// One training step as the operators below autograd that it called, views left out.
struct CapturedStep {
  std::vector<CapturedStorage> storages;
  std::vector<CapturedOperation> operations;
  std::vector<CapturedCall> calls;     ///< all calls in order
  std::vector<TensorUse> results;      ///< returned by the step
  std::vector<at::Tensor> parameters;  ///< as they were declared
  int64_t held_bytes = 0;              ///< maximum of HeldMemory (base/operation.h)
};

}  // namespace dovetail::plan
