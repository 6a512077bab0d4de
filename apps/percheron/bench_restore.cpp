// percheron bench restore: time to the first token of a prompt, computed, and read from the prefix
// cache's files by an engine that was started since.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "commands.h"
#include "first_token.h"
#include "load_flags.h"
#include "number_checks.h"
#include "text/tokenizer.h"
#include "tools/bench_streams.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"
#include "tools/model_source.h"

namespace percheron::apps {
namespace {

namespace fs = std::filesystem;

struct Arguments {
    LoadFlags flags;
    std::uint32_t prompt = 16384;
    std::uint32_t repeat = 3;
    double least = 5;  // computed over read
    fs::path folder;   // empty: a temporary one
    bool json = false;
};

// A folder on the disk to be measured, gone at the end.
class OwnFolder {
  public:
    explicit OwnFolder(const fs::path& below) {
        std::string name = (below / "percheron-bench-XXXXXX").string();
        if (::mkdtemp(name.data()) != nullptr) path_ = name;
    }
    ~OwnFolder() {
        std::error_code ignored;
        if (!path_.empty()) fs::remove_all(path_, ignored);
    }
    OwnFolder(const OwnFolder&) = delete;
    OwnFolder& operator=(const OwnFolder&) = delete;
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

// What the system still holds of the files would be read from memory.
void drop_from_page_cache(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
        const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        ::fsync(file);
        ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        ::close(file);
    }
}

Status measure(const Arguments& arguments) {
    PERCHERON_ASSIGN(const fs::path model, tools::resolve_model(arguments.flags.model));
    PERCHERON_ASSIGN(const fs::path text, tools::text_folder(model));
    PERCHERON_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(text / "tokenizer.json"));
    const OwnFolder folder(arguments.folder.empty() ? fs::temp_directory_path() : arguments.folder);
    if (folder.path().empty()) {
        return Error(ErrorCode::io, "no folder can be made where --folder says");
    }
    tools::LoadOptions options = arguments.flags.load;
    options.folder = model;
    options.context = options.context.value_or(arguments.prompt + 1);
    options.max_running = 2;
    options.prefix_disk = folder.path();
    const std::vector<TokenId> prompt = ordinary_prompt(tokenizer, arguments.prompt);

    FirstToken cold;
    PrefixDiskStatus written;
    std::string name;
    {
        PERCHERON_ASSIGN(const auto engine, tools::load_engine(options, tokenizer));
        name = engine->description().model_name;
        PERCHERON_ASSIGN(cold, first_token_of(*engine, prompt));
        while (engine->status().prefix_disk.queued_bytes > 0)
            std::this_thread::yield();
        written = engine->status().prefix_disk;
    }
    std::vector<double> again;
    std::uint64_t restored = 0;
    for (std::uint32_t i = 0; i < arguments.repeat; ++i) {
        drop_from_page_cache(folder.path());
        PERCHERON_ASSIGN(const auto engine, tools::load_engine(options, tokenizer));
        PERCHERON_ASSIGN(const FirstToken first, first_token_of(*engine, prompt));
        if (first.token != cold.token) {
            return Error(ErrorCode::internal, "the prompt read back gave another first token");
        }
        if (first.cached != (arguments.prompt - 1) / 64 * 64) {
            return Error(ErrorCode::internal, "only " + std::to_string(first.cached) +
                                                  " tokens of the prompt were read back; " +
                                                  std::to_string(written.dropped) +
                                                  " parts of it were not written");
        }
        restored = engine->status().prefix_disk.bytes_restored;
        again.push_back(first.seconds);
    }
    const double median = tools::median(again);
    const double ratio = cold.seconds / median;
    if (arguments.json) {
        std::printf("%s\n", nlohmann::ordered_json{{"model", name},
                                                   {"prompt", arguments.prompt},
                                                   {"cold_seconds", cold.seconds},
                                                   {"restored_seconds", median},
                                                   {"runs", again},
                                                   {"bytes", restored},
                                                   {"ratio", ratio},
                                                   {"limit", arguments.least}}
                                .dump(2)
                                .c_str());
    } else {
        std::printf(
            "%s, prompt %u: first token after %.3f s, after a restart with %.1f MiB read from disk "
            "after %.1f ms (median of %u): %.1f times as fast, limit %.0f  %s\n",
            name.c_str(), arguments.prompt, cold.seconds, static_cast<double>(restored) / (1 << 20),
            median * 1e3, arguments.repeat, ratio, arguments.least,
            ratio >= arguments.least ? "ok" : "BELOW");
    }
    if (ratio < arguments.least) {
        return Error(ErrorCode::internal, "read from disk it should be faster");
    }
    return {};
}

}  // namespace

void add_bench_restore(CLI::App& bench, int& exit_code) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = bench.add_subcommand(
        "restore",
        "Time to the first token of a prompt, computed and read from disk after a restart");
    command->footer("Example: percheron bench restore --prompt 4096 --folder /mnt/disk");
    add_load_flags(*command, arguments->flags);
    command->add_option("--prompt", arguments->prompt, "Tokens of the prompt")
        ->check(CLI::Range(65u, 1u << 20))
        ->capture_default_str();
    command->add_option("--repeat", arguments->repeat, "Times it is read; the median counts")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--folder", arguments->folder,
                        "Where the files are made and removed again (default: the system's "
                        "temporary folder)");
    command->add_option("--least", arguments->least, "How many times as fast it must be, or fail")
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "One JSON object on stdout");
    command->callback([arguments, &exit_code] {
        exit_code = exit_code_of(measure(*arguments), "bench restore");
    });
}

}  // namespace percheron::apps
