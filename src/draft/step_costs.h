// Seconds of a step by its rows and sequences, measured at start and refined while running.
//
//   seconds(R, S) = level * (prior(R) * correction(R) + sequence * (S - 1))
//   prior(R)      = 1 - row - experts + row * R + experts * touched(R) / touched(1)
//   touched(R)    = E (1 - (1 - k / E)^R)        of E experts k are chosen a row
//
// Every sequence brings its state, however many rows it has: a plain step of sixteen sequences
// takes longer than one of sixteen rows of two, and drafts must not look cheaper by the difference.
// A step reads what all rows share once, and the experts that its rows touch: the prior says how
// its time grows before anything was measured.  The correction is what measured steps of a like
// number of rows said of it, carried over to numbers that were never seen.  The level is common to
// all and takes a smaller part of every surprise: longer contexts and other work on the machine
// slow steps of all sizes.  Most of a surprise is put down to the number of rows it was met with,
// for that mistake corrects itself: drafts are left out for some steps, whose times show the truth.
// Neighbours learn a part of it, the less the better they are known themselves.
//
// Surprises that are large, alike and come one after the other are believed at once, as far as the
// smallest of them goes: the machine is another than it was, or was not itself when it was probed.
// What was met long before, or only probed, is then taken to have changed alike; what was met
// lately is not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace percheron::draft {

// What a row adds to a step, as far as the network's dimensions say.
struct StepShape {
    double experts = 0;  // of a layer; 0: every row uses all weights
    double chosen = 0;   // of them by a row
};

class StepCosts {
  public:
    explicit StepCosts(StepShape shape = {});

    // A step that ran for its own sake.
    void observe(double rows, double seconds, double sequences = 1);
    // A step that ran to be measured, at the start, where the machine may have had other work.
    void probe(double rows, double seconds, double sequences = 1);
    // What each sequence adds, as a share of a step of one row; 0 until it is known.
    void set_sequence_share(double share) { sequence_share_ = share; }
    bool known() const { return observed_ > 0; }
    // How often large surprises were believed; what is known of other rows may be out of date then.
    std::uint32_t moves() const { return moves_; }
    // Rises with the rows, at least a little: where measured times do not, they are balanced by how
    // much and how lately each was seen.
    double seconds(double rows, double sequences = 1) const;

  private:
    // Kernels take rows by eights, so that a step may cost a good deal more from one row past a
    // multiple on.
    static constexpr std::array<double, 25> rows_of_a_node = {
        1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  12,  16, 17,
        20, 24, 25, 32, 48, 64, 96, 128, 192, 256, 384, 512};
    struct Node {
        double prior = 0;       // logarithm
        double correction = 0;  // the same; where nothing was seen, carried over
        double seen = 0;        // steps
        double last = 0;        // observed_ when it was met for its own sake; 0: never
        double weight = 0;      // of what was seen, the latest counting most
        double seconds = 0;
        // Large surprises in a row, all up or all down.
        int alike = 0;
        double least = 0;     // of them; its sign is theirs
        double put_down = 0;  // to the number of rows, while they came
    };

    struct Place {
        std::size_t low = 0;  // the last node at or below, but for the very last one
        double part = 0;      // of the way to the next
    };
    static Place place_of(double rows);
    double log_relative(double rows, double sequences) const;
    Node& nearest(double rows);
    void take(Node& node, double surprise);
    double surprise_of(double rows, double seconds, double sequences);
    bool believes(Node& node, double surprise) const;
    void move_level(const Node& node, double by);
    void forget(const Node& met, double surprise);
    void teach_neighbours(const Node& taught, double by);
    void carry_over();
    void tabulate();
    void balance(std::size_t nodes);

    std::array<Node, rows_of_a_node.size()> nodes_;
    double sequence_share_ = 0;
    double level_ = 0;  // logarithm
    double observed_ = 0;
    std::uint32_t moves_ = 0;
};

}  // namespace percheron::draft
