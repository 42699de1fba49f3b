#pragma once

namespace dovetail::cli {

/// Thrown by a command that answers a question and has printed that the answer is no: exit 1, with
/// no message.
struct AnswerIsNo {};

}  // namespace dovetail::cli
