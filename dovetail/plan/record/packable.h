#pragma once

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Lets tensors be packed in MXFP8 (E4M3 with scales rounded up, blocks of 32 along the storage)
/// between forward and backward, with loss: adds the codec of each dtype that there is, and sets
/// `lossy_ok` and `codecs` of the tensors and `reads_unpacked` of the nodes.
///
/// A tensor may be stored with loss if
///   - it is an activation that an operation of the forward pass made, drawing no random numbers,
///   and nothing changes
///     it afterwards (no parameter, state, input or result; no gradient, whichever pass made it; no
///     dropout mask),
///   - it is float32 or bfloat16 in all its uses, one of which spans its storage,
///   - every operation of the backward pass that reads it is known to read it as an operand of a
///   product, as the point
///     at which a pointwise function or a normalization is differentiated, or for its sizes alone:
///     a table of operators and arguments in the source. Whatever is not in the table (statistics,
///     logarithms of sums, targets) stays exact.
/// Only such operations are ever given a copy that was packed: forward operations, also those that
/// run again, and updates read none. What may be packed without loss (allow_same_codes, which comes
/// first) is packed so.
void allow_loss(const CapturedStep& step, StepGraph& graph);

/// Lets tensors be packed without loss where all that reads them later makes the same codes of
/// them: adds a codec of error 0 for each format that occurs, and sets `codecs` and
/// `reads_unpacked` as above.
///
/// So for an activation that nothing changes and that every operation of the backward pass that
/// reads it quantizes to one format, with one rule for scales, in blocks that are all whole: a
/// float32 one along its last dimension or down its columns (dovetail::mx_quantize), a float32 or
/// bfloat16 one down the columns of a Linear's input (dovetail::mx_column_codes.FORMAT.SCALES).
/// Quantizing what was quantized gives the same numbers as long as these are below 2^127. bfloat16
/// does not hold the codes of blocks below 2^-116, but the numbers that it has in their place stay,
/// too; so there it takes a reader, as Linears are, to which only the numbers in bfloat16 matter.
void allow_same_codes(const CapturedStep& step, StepGraph& graph);

/// Measures all codecs of the graph over a tensor of `bytes`.
void measure_codecs(StepGraph& graph, int64_t bytes, int rounds);

}  // namespace dovetail::plan
