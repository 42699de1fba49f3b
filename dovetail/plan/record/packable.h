#pragma once

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"

/// Selection of tensors that a plan may keep compressed between forward and backward.
namespace dovetail::plan {

/// Marks tensors that may be compressed with loss. The format is MXFP8 (E4M3 with scales rounded
/// up, blocks of 32 along the storage). Adds one codec per dtype that occurs. Sets `lossy_ok` and
/// `codecs` of tensors, and `reads_unpacked` of nodes (plan/model/graph.h).
///
/// A tensor may be stored with loss if
/// - it is an activation (no parameter, state, input, result, gradient or dropout mask),
/// - a forward operation without random numbers created it, and nothing changes it afterwards,
/// - it is float32 or bfloat16 in all its uses, and one use spans its storage,
/// - each backward operation that reads it tolerates the loss. A table in the source lists these
///   operators and arguments.
///
/// The table lists three kinds of arguments:
/// - an operand of a product,
/// - a tensor that is read only for its sizes,
/// - the point at which a pointwise function or a normalization is differentiated.
///
/// Everything else stays exact, for example statistics, logarithms of sums and targets.
///
/// Only these backward operations may read a copy that was compressed. Forward operations,
/// including recomputed ones, and updates never do.
///
/// Call `allow_same_codes` first: tensors that it marks are compressed without loss.
void allow_loss(const CapturedStep& step, StepGraph& graph);

/// Marks tensors that can be compressed without loss: all later readers quantize them to the same
/// codes anyway. Adds a codec with error 0 for each format that occurs. Sets `codecs` and
/// `reads_unpacked` as `allow_loss` does.
///
/// Marks an activation if
/// - no operation changes it in place,
/// - each backward operation that reads it quantizes it,
/// - all these operations use the same format and the same rule for scales,
/// - all blocks are whole.
///
/// Two kinds of readers quantize:
/// - dovetail::mx_quantize: a float32 activation, along its last dimension or down its columns
/// - dovetail::mx_column_codes.FORMAT.SCALES: a float32 or bfloat16 input of a Linear, down its
///   columns
///
/// Quantizing a quantized tensor again gives the same numbers, so readers see no loss. This holds
/// for numbers below 2^127.
///
/// A bfloat16 activation unpacks to its quantized numbers, rounded to bfloat16. In a block whose
/// maximum is below 2^-116 this rounding can change them. Quantizing and rounding the result again
/// changes nothing more. So a reader of a bfloat16 activation sees no loss if it also rounds these
/// numbers to bfloat16 before use. Linears do.
void allow_same_codes(const CapturedStep& step, StepGraph& graph);

/// Measures how fast each codec of the graph packs and unpacks a tensor of `bytes`, and stores the
/// rates in the graph. Rates are medians over `rounds` rounds.
void measure_codecs(StepGraph& graph, int64_t bytes, int rounds);

}  // namespace dovetail::plan
