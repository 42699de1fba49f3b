#pragma once

namespace dovetail::cli {

/// Thrown by a command that answers a yes/no question, after it has printed that the answer is no.
/// The program then exits with 1, without a message.
struct AnswerIsNo {};

}  // namespace dovetail::cli
