#include "tools/drawn_tasks.h"

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <utility>

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Colour {
    std::string_view name;
    std::array<int, 3> rgb;
};
constexpr std::array<Colour, 8> colours = {{{"red", {220, 30, 30}},
                                            {"green", {30, 160, 50}},
                                            {"blue", {40, 70, 220}},
                                            {"yellow", {240, 220, 40}},
                                            {"purple", {140, 50, 170}},
                                            {"orange", {245, 140, 20}},
                                            {"black", {15, 15, 15}},
                                            {"white", {245, 245, 245}}}};
constexpr std::array<std::string_view, 4> kinds = {"circle", "square", "triangle", "cross"};
constexpr std::array<std::string_view, 9> places = {"top left",    "top",    "top right",
                                                    "left",        "center", "right",
                                                    "bottom left", "bottom", "bottom right"};

// Draws that every standard library makes alike.
class Draws {
  public:
    explicit Draws(std::uint64_t seed) : engine_(seed) {}
    // A whole number of [low, high].
    int between(int low, int high) {
        return low + static_cast<int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool chance(int percent) { return between(0, 99) < percent; }
    template <class List>
    const auto& one_of(const List& list) {
        return list[static_cast<std::size_t>(between(0, static_cast<int>(list.size()) - 1))];
    }

  private:
    std::mt19937_64 engine_;
};

bool alike(std::string_view a, std::string_view b) {
    constexpr std::array<std::array<std::string_view, 2>, 4> pairs = {
        {{"orange", "yellow"}, {"yellow", "white"}, {"purple", "blue"}, {"red", "orange"}}};
    return std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
        return (a == pair[0] && b == pair[1]) || (a == pair[1] && b == pair[0]);
    });
}

std::array<int, 3> jittered(Draws& draws, const std::array<int, 3>& rgb, int by) {
    std::array<int, 3> result{};
    for (std::size_t c = 0; c < 3; ++c) {
        result[c] = std::clamp(rgb[c] + draws.between(-by, by), 0, 255);
    }
    return result;
}

// What all four tasks start from: two colours that are told apart, a size, a kind of shape.
class Sheet {
  public:
    explicit Sheet(Draws& draws) : draws_(draws) {
        do {
            shape = draws.one_of(colours);
            ground = draws.one_of(colours);
        } while (shape.name == ground.name || alike(shape.name, ground.name));
        constexpr std::array<std::array<int, 2>, 12> sizes = {{{112, 112},
                                                               {112, 112},
                                                               {112, 112},
                                                               {112, 112},
                                                               {112, 112},
                                                               {112, 168},
                                                               {112, 168},
                                                               {168, 112},
                                                               {168, 112},
                                                               {168, 168},
                                                               {168, 168},
                                                               {224, 224}}};
        const auto& size = draws.one_of(sizes);
        height = size[0];
        width = size[1];
        least = std::min(height, width);
        kind = draws.one_of(kinds);
        ink_ = jittered(draws, shape.rgb, 18);
        draw_ = {{"size", {height, width}},
                 {"ground", jittered(draws, ground.rgb, 8)},
                 {"shapes", Json::array()}};
    }

    void add(int x, int y, int s) {
        draw_["shapes"].push_back({kind, x, y, s, ink_[0], ink_[1], ink_[2]});
    }

    // The conversation; now and then the question stands before the picture.
    Json messages(const std::string& question) const {
        Json content = Json::array(
            {{{"type", "image"}, {"draw", draw_}}, {{"type", "text"}, {"text", question}}});
        if (draws_.chance(15)) std::swap(content[0], content[1]);
        return Json::array({{{"role", "user"}, {"content", std::move(content)}}});
    }

    Colour shape, ground;
    int height = 0, width = 0, least = 0;
    std::string kind;

  private:
    Draws& draws_;
    std::array<int, 3> ink_{};
    Json draw_;
};

struct Asked {
    std::string question;
    std::string answer;
};

void add_one_anywhere(Sheet& sheet, Draws& draws) {
    const int s = draws.between(sheet.least / 7, sheet.least / 3 - 1);
    sheet.add(draws.between(s, sheet.width - s), draws.between(s, sheet.height - s), s);
}

Asked ask_colour(Sheet& sheet, Draws& draws) {
    add_one_anywhere(sheet, draws);
    if (draws.chance(25)) {
        return {"What color is the background?", std::string(sheet.ground.name)};
    }
    return {draws.chance(50) ? "What color is the " + sheet.kind + "?"
                             : "Which color does the shape have?",
            std::string(sheet.shape.name)};
}

Asked ask_shape(Sheet& sheet, Draws& draws) {
    add_one_anywhere(sheet, draws);
    return {draws.chance(50) ? "Which shape is shown?" : "What shape do you see?", sheet.kind};
}

Asked ask_count(Sheet& sheet, Draws& draws) {
    const int rows = 3, columns = sheet.least < 160 ? 3 : 4;
    const int count = draws.between(1, 7);
    std::vector<int> cells(static_cast<std::size_t>(rows * columns));
    for (std::size_t i = 0; i < cells.size(); ++i) {
        cells[i] = static_cast<int>(i);
    }
    const double cell_height = static_cast<double>(sheet.height) / rows;
    const double cell_width = static_cast<double>(sheet.width) / columns;
    const int s = static_cast<int>(std::min(cell_height, cell_width) * 0.36);
    for (int i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::swap(
            cells[at],
            cells[static_cast<std::size_t>(draws.between(i, static_cast<int>(cells.size()) - 1))]);
        const int own = s - draws.between(0, std::max(1, s / 3) - 1);
        sheet.add(
            static_cast<int>((cells[at] % columns + 0.5) * cell_width) + draws.between(-2, 2),
            static_cast<int>((cells[at] / columns + 0.5) * cell_height) + draws.between(-2, 2),
            own);
    }
    const std::string many = sheet.kind == "cross" ? "crosses" : sheet.kind + "s";
    return {draws.chance(50) ? "How many " + many + " are there?" : "Count the " + many + ".",
            std::to_string(count)};
}

Asked ask_position(Sheet& sheet, Draws& draws) {
    const int place = draws.between(0, 8);
    const int s = draws.between(sheet.least / 12, sheet.least / 7 - 1);
    sheet.add(static_cast<int>((place % 3 + 0.5) * sheet.width / 3) + draws.between(-4, 4),
              static_cast<int>((place / 3 + 0.5) * sheet.height / 3) + draws.between(-4, 4), s);
    return {"Where is the " + sheet.kind + "?",
            std::string(places[static_cast<std::size_t>(place)])};
}

}  // namespace

std::vector<TaskItem> draw_task_items(std::size_t count, std::uint64_t seed) {
    using Ask = Asked (*)(Sheet&, Draws&);
    constexpr std::array<std::pair<const char*, Ask>, 4> tasks = {
        {{"vision colour", ask_colour},
         {"vision count", ask_count},
         {"vision position", ask_position},
         {"vision shape", ask_shape}}};
    // As often as in training: no reasoning, short, long.
    constexpr std::array<const char*, 10> efforts = {"low",  "low", "low", "high", "high",
                                                     "high", "max", "max", "max",  "max"};
    std::vector<TaskItem> items;
    std::uint64_t task = 0;
    for (const auto& [name, ask] : tasks) {
        Draws draws(seed * tasks.size() + task++);  // no task shows another's pictures
        for (std::size_t i = 0; i < count; ++i) {
            Sheet sheet(draws);
            const Asked asked = ask(sheet, draws);
            TaskItem item;
            item.task = name;
            item.messages = sheet.messages(asked.question);
            item.reasoning_effort = draws.one_of(efforts);
            item.want = asked.answer;
            items.push_back(std::move(item));
        }
    }
    return items;
}

}  // namespace percheron::tools
