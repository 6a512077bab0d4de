#include "tools/eval_tasks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include <zstd.h>

#include "text/prompt_images.h"
#include "tools/item_images.h"

namespace percheron::tools {
namespace {

constexpr std::string_view zstd_magic = "\x28\xb5\x2f\xfd";
constexpr std::size_t largest_item_file = std::size_t{1} << 30;
constexpr std::size_t longest_task = 64;  // of a name, in bytes

Result<std::string> read_text(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
        return Error(ErrorCode::not_found, file.string() + ": cannot be opened for reading");
    }
    std::ostringstream content;
    content << stream.rdbuf();
    return std::move(content).str();
}

Result<std::string> unpacked(const std::string& packed, const std::filesystem::path& file) {
    const Error damaged(ErrorCode::corrupt, file.string() + ": the zstd data is damaged");
    std::string text;
    ZSTD_DStream* stream = ZSTD_createDStream();
    ZSTD_DCtx_setParameter(stream, ZSTD_d_windowLogMax, 27);
    ZSTD_inBuffer input{packed.data(), packed.size(), 0};
    std::string chunk(ZSTD_DStreamOutSize(), '\0');
    std::size_t state = 1;
    while (input.pos < input.size) {
        ZSTD_outBuffer output{chunk.data(), chunk.size(), 0};
        state = ZSTD_decompressStream(stream, &output, &input);
        if (ZSTD_isError(state) != 0 || text.size() > largest_item_file) break;
        text.append(chunk, 0, output.pos);
    }
    ZSTD_freeDStream(stream);
    if (state != 0) return damaged;
    return text;
}

Result<TaskItem> parse_item(const std::string& line) {
    const auto object = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!object.is_object()) return Error(ErrorCode::corrupt, "is not a JSON object");
    TaskItem item;
    const std::pair<const char*, std::string*> strings[] = {
        {"task", &item.task}, {"reasoning_effort", &item.reasoning_effort}, {"want", &item.want}};
    for (const auto& [name, target] : strings) {
        const auto field = object.find(name);
        if (field == object.end() || !field->is_string()) {
            return Error(ErrorCode::corrupt, std::string("has no string \"") + name + '"');
        }
        *target = field->get<std::string>();
    }
    if (item.task.size() > longest_task) {
        return Error(ErrorCode::corrupt, "\"task\" has more than 64 bytes");
    }
    const auto found = object.find("check");
    const auto check = found == object.end() ? nlohmann::ordered_json("text") : *found;
    if (check != "text" && check != "number") {
        return Error(ErrorCode::corrupt, "has an unknown \"check\": " + check.dump().substr(0, 40));
    }
    item.check = check == "text" ? TaskItem::Check::text : TaskItem::Check::number;
    const auto messages = object.find("messages");
    if (messages == object.end() || !messages->is_array()) {
        return Error(ErrorCode::corrupt, "has no list \"messages\"");
    }
    item.messages = *messages;
    if (const auto tools = object.find("tools"); tools != object.end()) item.tools = *tools;
    return item;
}

std::string_view stripped(std::string_view text) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

bool is_digit(char character) {
    return character >= '0' && character <= '9';
}

// The last -?digits(.digits)? of a text; empty when there is none.
std::string_view last_number(std::string_view text) {
    std::string_view last;
    for (std::size_t i = 0; i < text.size();) {
        const bool minus = text[i] == '-' && i + 1 < text.size() && is_digit(text[i + 1]);
        if (!minus && !is_digit(text[i])) {
            ++i;
            continue;
        }
        const std::size_t start = i;
        i += minus ? 1 : 0;
        while (i < text.size() && is_digit(text[i]))
            ++i;
        if (i + 1 < text.size() && text[i] == '.' && is_digit(text[i + 1])) {
            ++i;
            while (i < text.size() && is_digit(text[i]))
                ++i;
        }
        last = text.substr(start, i - start);
    }
    return last;
}

// Collects what the engine says of the requests in flight.
class Collector final : public EngineEventSink {
  public:
    struct Reply {
        std::vector<TokenId> ids;
        std::optional<Error> error;
    };

    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        for (const auto& run : events.runs) {
            auto& ids = running_[to_int(run.request)].ids;
            const auto first = events.tokens.begin() + run.first;
            ids.insert(ids.end(), first, first + run.count);
        }
        for (const auto& end : events.finished) {
            Reply& reply = running_[to_int(end.request)];
            reply.error = end.error;
            finished_.emplace_back(to_int(end.request), std::move(reply));
            running_.erase(to_int(end.request));
        }
        if (!events.finished.empty()) changed_.notify_one();
    }

    std::pair<std::uint64_t, Reply> wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !finished_.empty(); });
        auto first = std::move(finished_.front());
        finished_.pop_front();
        return first;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::unordered_map<std::uint64_t, Reply> running_;
    std::deque<std::pair<std::uint64_t, Reply>> finished_;
};

// Index of every task's name in order of first appearance, and each item's.
struct TaskOrder {
    std::vector<std::string> names;
    std::vector<std::size_t> of_item;

    explicit TaskOrder(std::span<const TaskItem> items) {
        std::map<std::string, std::size_t> seen;
        for (const TaskItem& item : items) {
            const auto [place, fresh] = seen.try_emplace(item.task, names.size());
            if (fresh) names.push_back(item.task);
            of_item.push_back(place->second);
        }
    }
};

}  // namespace

Result<std::vector<TaskItem>> read_task_items(const std::filesystem::path& file) {
    PERCHERON_ASSIGN(std::string text, read_text(file));
    if (text.starts_with(zstd_magic)) {
        PERCHERON_ASSIGN(text, unpacked(text, file));
    }
    std::vector<TaskItem> items;
    std::istringstream lines(std::move(text));
    std::size_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (stripped(line).empty()) continue;
        auto item = parse_item(line);
        if (!item.ok()) {
            return item.error().in(file.string() + ", line " + std::to_string(number));
        }
        items.push_back(std::move(item).value());
    }
    if (items.empty()) return Error(ErrorCode::corrupt, file.string() + ": holds no items");
    return items;
}

Result<std::vector<TaskItem>> choose_task_items(std::vector<TaskItem> items,
                                                std::span<const std::string> tasks,
                                                std::optional<std::size_t> limit) {
    for (const std::string& task : tasks) {
        if (std::none_of(items.begin(), items.end(),
                         [&](const TaskItem& item) { return item.task == task; })) {
            return Error(ErrorCode::invalid_argument, "no item belongs to the task \"" + task +
                                                          "\"; see the file's \"task\" fields");
        }
    }
    std::map<std::string, std::size_t> taken;
    std::erase_if(items, [&](const TaskItem& item) {
        const bool wanted =
            tasks.empty() || std::find(tasks.begin(), tasks.end(), item.task) != tasks.end();
        return !wanted || (limit && ++taken[item.task] > *limit);
    });
    return items;
}

bool answers(const TaskItem& item, std::string_view reply) {
    constexpr std::string_view close = "</think>";
    if (const auto end = reply.rfind(close); end != std::string_view::npos) {
        reply.remove_prefix(end + close.size());
    }
    const std::string_view given = stripped(reply);
    if (item.check == TaskItem::Check::text) return given == stripped(item.want);
    const std::string_view number = last_number(given);
    return !number.empty() && number == last_number(item.want);
}

Result<TaskPart> parse_task_part(std::string_view text) {
    TaskPart part;
    const std::size_t slash = text.find('/');
    const auto number = [](std::string_view digits, std::size_t& value) {
        const char* end = digits.data() + digits.size();
        const auto [rest, failure] = std::from_chars(digits.data(), end, value);
        return failure == std::errc() && rest == end;
    };
    if (slash == std::string_view::npos || !number(text.substr(0, slash), part.number) ||
        !number(text.substr(slash + 1), part.of) || part.number < 1 || part.number > part.of) {
        return Error(ErrorCode::invalid_argument,
                     "a part is written I/N with 1 <= I <= N, not \"" + std::string(text) + '"');
    }
    return part;
}

std::vector<TaskItem> part_of_items(std::vector<TaskItem> items, TaskPart part) {
    std::size_t index = 0;
    std::erase_if(items, [&](const TaskItem&) { return index++ % part.of != part.number - 1; });
    return items;
}

Status run_tasks(Engine& engine, const ChatFormat& format, std::span<const TaskItem> items,
                 const TaskRunOptions& options, const TaskAnswered& answered) {
    const std::vector<TokenId>& stops = engine.description().stop_tokens;
    Collector collector;
    std::unordered_map<std::uint64_t, std::size_t> item_of;
    std::optional<Error> failure;

    const auto submit = [&](std::size_t index) -> Status {
        ChatOptions chat;
        chat.reasoning_effort = items[index].reasoning_effort;
        PERCHERON_ASSIGN(ChatPrompt prompt,
                         format.render(items[index].messages, items[index].tools, chat));
        GenerationRequest request;
        PERCHERON_ASSIGN(std::vector<PromptImage> images, item_images(items[index].messages));
        request.images = place_images(std::move(images), prompt);
        request.prompt = std::move(prompt.ids);
        request.sampling.temperature = 0;
        request.max_tokens = options.max_tokens;
        PERCHERON_ASSIGN(const RequestId id, engine.submit(std::move(request), collector));
        item_of[to_int(id)] = index;
        return {};
    };

    std::size_t next = 0;
    std::size_t finished = 0;
    // After a failure nothing new starts, but what runs must end before the collector goes.
    while (finished < next || (next < items.size() && !failure)) {
        while (!failure && next < items.size() && next - finished < options.streams) {
            if (const Status sent = submit(next); !sent.ok()) {
                failure = sent.error();
                break;
            }
            ++next;
        }
        if (finished == next) break;
        auto [id, reply] = collector.wait();
        const std::size_t index = item_of.at(id);
        item_of.erase(id);
        ++finished;
        if (failure) continue;
        if (reply.error) {
            failure = reply.error;
            continue;
        }
        std::vector<TokenId>& ids = reply.ids;
        ids.erase(std::find_first_of(ids.begin(), ids.end(), stops.begin(), stops.end()),
                  ids.end());
        const bool right = answers(items[index], format.tokenizer().decode(ids));
        if (const Status taken = answered(index, right); !taken.ok()) failure = taken.error();
    }
    if (failure) return *failure;
    return {};
}

std::vector<TaskScore> score_tasks(std::span<const TaskItem> items,
                                   const std::vector<bool>& right) {
    const TaskOrder order(items);
    std::vector<TaskScore> scores(order.names.size());
    for (std::size_t task = 0; task < scores.size(); ++task)
        scores[task].task = order.names[task];
    for (std::size_t i = 0; i < items.size(); ++i) {
        ++scores[order.of_item[i]].items;
        scores[order.of_item[i]].right += right[i] ? 1 : 0;
    }
    return scores;
}

std::vector<TaskDifference> compare_tasks(std::span<const TaskItem> items,
                                          const std::vector<bool>& base,
                                          const std::vector<bool>& model) {
    const auto base_scores = score_tasks(items, base);
    const auto model_scores = score_tasks(items, model);
    const TaskOrder order(items);
    std::vector<double> changed(order.names.size(), 0.0);  // items judged differently
    for (std::size_t i = 0; i < items.size(); ++i) {
        changed[order.of_item[i]] += base[i] != model[i] ? 1 : 0;
    }
    std::vector<TaskDifference> differences;
    for (std::size_t task = 0; task < order.names.size(); ++task) {
        TaskDifference row;
        row.task = order.names[task];
        row.items = base_scores[task].items;
        row.base = base_scores[task].accuracy();
        row.model = model_scores[task].accuracy();
        row.difference = row.model - row.base;
        // A pair differs by -1, 0 or 1: the mean square is the share of changed items.
        const auto count = static_cast<double>(row.items);
        const double variance = changed[task] / count - row.difference * row.difference;
        if (row.items > 1) row.band = 1.96 * std::sqrt(std::max(variance, 0.0) / count);
        differences.push_back(std::move(row));
    }
    return differences;
}

}  // namespace percheron::tools
