// What xgrammar's core says and throws.  A fatal fault is an exception, which src/grammar turns
// into an error.  Its warnings are dropped: they speak of rules that src/grammar wrote or checked
// itself, and of tokens it refused, which its callers hear as a return value.
#include <stdexcept>
#include <string>

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
    throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
