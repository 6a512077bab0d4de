#include "load_flags.h"

#include <cmath>
#include <map>

#include <CLI/CLI.hpp>

namespace percheron::apps {

Result<Bytes> parse_size(const std::string& text) {
    static const std::map<std::string, double> units = {
        {"", 1.0}, {"B", 1.0}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
    };
    std::size_t digits = 0;
    double number = 0;
    try {
        number = std::stod(text, &digits);
    } catch (const std::exception&) {
        digits = 0;
    }
    const auto unit = units.find(text.substr(digits));
    const double bytes = unit == units.end() ? -1 : number * unit->second;
    if (digits == 0 || !(bytes >= 0) || bytes > 0x1p60) {
        return Error(ErrorCode::invalid_argument,
                     "\"" + text + "\" is not a size; write 512MiB or 8GiB");
    }
    return static_cast<Bytes>(std::llround(bytes));
}

void add_load_flags(CLI::App& command, LoadFlags& flags) {
    tools::LoadOptions& load = flags.load;
    command.add_option("MODEL", flags.model, "Model folder (default: the embedded nano)");
    command.add_option("--device", load.device, "auto or cpu")->capture_default_str();
    command.add_option("--threads", load.threads, "Threads that compute (default: one a core)");
    command.add_option("--context", load.context,
                       "Tokens of one request, prompt and reply (default: the smaller of the "
                       "model's limit and what fits)");
    command.add_option_function<std::string>(
        "--kv-memory",
        [&load](const std::string& text) {
            const auto size = parse_size(text);
            if (!size.ok()) {
                throw CLI::ValidationError("--kv-memory", size.error().message());
            }
            load.kv_memory = *size;
        },
        "Memory for pages and request slots, as 512MiB or 8GiB (default: planned)");
    command.add_option("--kv-dtype", load.kv_dtype, "auto (bf16) or bf16")->capture_default_str();
    command.add_option("--seed", load.seed, "Makes the seeds of requests without one repeatable");
}

}  // namespace percheron::apps
