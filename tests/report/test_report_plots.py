"""The pictures of a report: what they name, where they put it, and that they repeat."""

from math import hypot
from xml.etree import ElementTree

import numpy as np
import pytest

from drawn_text import outside
from pfed1bs import report
from pfed1bs.algorithms import REGISTRY
from pfed1bs.report.columns import significant
from pfed1bs.report.groups import groups, student
from pfed1bs.report.labels import REACH, End, box_of, column, name_ends, near
from pfed1bs.report.leading import leading
from pfed1bs.report.pictures import bars_of, shown_of
from pfed1bs.report.style import HANDLE, KNOWN, TEXT, arranged, canvas, distinct, headed, look, pen, size, svg, width_of
from run_folders import records_of, run_folder

SVG = "{http://www.w3.org/2000/svg}"


def words_of(path):
    return [element.text for element in ElementTree.fromstring(path.read_text()).iter(f"{SVG}text")]


def test_every_method_has_its_own_look_in_every_picture():
    looks = [pen(name) for name in KNOWN]
    assert len(set(looks)) == len(KNOWN) and {*KNOWN} == REGISTRY.keys() - {"local"}
    assert len({pen("pfed1bs", variant) for variant in range(8)}) == 8


def test_methods_that_stand_out_together_have_different_colours():
    assert pen("eden").colour == pen("eden-two").colour or pen("fedavg").colour == pen("eden-two").colour
    named = [("local", 0), ("fedavg", 0), ("eden-two", 0), ("ferret", 0), ("eden", 0), ("pfed1bs", 0), ("pfed1bs", 1)]
    found = distinct(named)
    assert len({own.colour for own in found}) == len(named)
    assert found[:2] == [pen("local"), pen("fedavg")]  # the first keep theirs


def test_names_in_a_column_keep_their_order_and_move_as_little_as_can_be():
    assert column([50.0, 50.0, 20.0], [10.0, 10.0, 10.0], 0, 100) == [55, 45, 20]
    assert column([1.0, 2.0], [10.0, 10.0], 0, 100) == [5, 15]  # inside the picture
    assert column([99.0, 98.0, 10.0], [10.0, 30.0, 10.0], 0, 100) == [95, 75, 10]


def test_a_name_stands_near_its_own_point_and_no_nearer_to_another():
    spots = [(50.0, 50.0), (150.0, 52.0), (153.0, 50.0), (150.0, 48.0), (147.0, 50.0), (150.0, 50.0)]
    found = near(spots, [(60.0, 10.0)] * 6, (0, 0, 300, 100), np.array([(0.0, 0.0)]))
    assert found[0] is not None and found[-1] is None  # surrounded by the others
    for spot, place in zip(spots, found, strict=True):
        away = [
            hypot(max(place[0] - x, x - place[0] - 60, 0), max(abs(y - place[1]) - 5, 0)) for x, y in spots if place
        ]
        assert not away or away[spots.index(spot)] == pytest.approx(min(away)) and min(away) <= REACH


def test_names_that_find_no_place_are_listed_below_and_none_is_lost(tmp_path):
    names = [name for name in KNOWN[:14] if name != "pfed1bs"]
    runs = [run_folder(tmp_path, name, accuracies=(50, 90), total_mib=9.0) for name in names]  # all end at one point
    report.draw(list(map(report.read, runs)), "accuracy-bytes", tmp_path / "a.svg")
    words = words_of(tmp_path / "a.svg")
    assert [words.count(name) for name in names] == [1] * len(names)
    text = (tmp_path / "a.svg").read_text()
    assert 'id="legend_1"' in text and outside(text) == []


def test_thin_lines_that_are_listed_below_end_in_marks_of_their_own():
    with look():
        figure = canvas()
        axes = figure.subplots()
        ends = [End(f"method {i}", 5.0, 5.0, "#333333", strong=i < 2, number=i) for i in range(14)]
        for end in ends:
            axes.plot([0, end.x], [0, end.y], gid=f"line-{end.number}", color="#777777")
        name_ends(figure, axes, ends, free=True)
    [listed] = figure.legends
    names = [text.get_text() for text in listed.get_texts()]
    marks = {line.get_gid(): (line.get_marker(), line.get_fillstyle(), line.get_markevery()) for line in axes.lines}
    thin = [name for name in names if name not in ("method 0", "method 1")]
    own = [marks[f"line-{name.split()[1]}"] for name in thin]
    assert {mark[1] for mark in own} == {"full", "none"}
    assert len(thin) > 8 and len({*map(str, own)}) == len(own) and all(mark[2] == [-1] for mark in own)
    others = {f"line-{end.number}" for end in ends} - {f"line-{name.split()[1]}" for name in thin}
    assert others and all(marks[gid][0] == "None" for gid in others)


@pytest.mark.parametrize("layout", ["none", "constrained"])
def test_a_line_above_a_picture_makes_it_taller_and_moves_nothing_in_it(layout):
    with look():
        figure = canvas()
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1])
        figure.draw_without_rendering()
        if layout == "none":
            figure.set_layout_engine("none")
        before, tall = axes.get_window_extent().bounds, figure.get_figheight()
        headed(figure, "SVHN, a subset")
        assert figure.get_figheight() > tall and ">SVHN, a subset<" in svg(figure) and outside(svg(figure)) == []
    assert axes.get_window_extent().bounds == pytest.approx(before, abs=1.5)
    [title] = figure.texts
    assert title.get_window_extent().y0 > axes.get_window_extent().y1


def test_a_name_that_is_wider_than_the_picture_is_broken_and_inside(tmp_path):
    options = "lr = {}\nkeep = '{}'\nfollow = false\nscales = '{}'\nratio = {}\nsnapshots = '{}'"
    found = [("0.05", "prox", "one", "0.1", "float32"), ("0.2598", "mean", "layer", "0.05", "coded")]
    runs = [run_folder(tmp_path, "pfed1bs-delta", options=options.format(*own)) for own in found]
    for name in ("accuracy-bytes", "accuracy-rounds"):
        report.draw(list(map(report.read, runs)), name, tmp_path / "a.svg")
        assert "snapshots=coded" in " ".join(words_of(tmp_path / "a.svg"))
        assert outside((tmp_path / "a.svg").read_text()) == []


def test_names_stay_beside_their_ends_where_a_list_makes_the_picture_taller():
    """The list moves the axes up; a name and the end it belongs to move with them."""
    with look():
        figure = canvas()
        axes = figure.subplots()
        ends = [End(f"method {i}", 5.0, 5.0, "#333333", number=i) for i in range(12)]
        ends.append(End("alone", 1.0, 9.0, "#333333", number=12))
        for end in ends:
            axes.plot([0, end.x], [0, end.y], gid=f"line-{end.number}")
        tall = figure.get_figheight()
        name_ends(figure, axes, ends, free=True)
        figure.canvas.draw()
        assert figure.get_figheight() > tall  # some are listed
        found = {note.get_gid(): note for note in axes.texts}
        tip = axes.transData.transform((1.0, 9.0)) * 72 / figure.dpi
        assert found["name-12"].xy == pytest.approx(tip, abs=1)
        across, up = found["name-12"].xyann
        assert abs(across - tip[0]) < REACH + box_of(ends[12])[0] and abs(up - tip[1]) < box_of(ends[12])[1]


def test_a_method_that_stands_out_has_one_colour_in_all_pictures(tmp_path):
    pictures = [  # what stands out in results/fig-pareto and fig-accuracy
        ("local", "fedavg", "ditto", "pfed1bs-delta", "delta-float32"),
        ("local", "fedbn", "delta-float32", "pfed1bs-delta", "fedavg"),
        ("obda", "pfed1bs-delta", "ditto", "local", "fedavg"),
        ("eden", "ditto", "fedavg", "local", "pfed1bs-delta"),
        ("delta-float32", "pfed1bs-delta", "pfed1bs", "ditto", "fedavg", "local"),
    ]
    colours: dict[str, set[str]] = {}
    for number, names in enumerate(pictures):
        ours = [("pfed1bs-delta", f"ratio = {ratio}") for ratio in (0, 0.01)]
        pairs = [(name, "lr = 0.05") for name in names if name != "pfed1bs-delta"] + ours
        folders = [run_folder(tmp_path / str(number), name, options=options) for name, options in pairs]
        for item in shown_of(groups(map(report.read, folders))):
            colours.setdefault(item.group.label, set()).add(item.colour)
    assert {label: len(found) for label, found in colours.items()} == dict.fromkeys(colours, 1)
    assert {"pfed1bs-delta ratio=0.01", "fedbn", "pfed1bs"} <= colours.keys()


def test_names_near_points_cover_neither_each_other_nor_lines():
    spots, sizes = [(50.0, 50.0)] * 4, [(30.0, 10.0)] * 4
    ink = np.array([(float(x), 50.0) for x in range(100)])
    found = near(spots, sizes, (0, 0, 100, 100), ink)
    boxes = [(x, y - 5, x + 30, y + 5) for x, y in found]
    assert all(box[1] > 50 or box[3] < 50 for box in boxes)
    assert all(0 <= box[0] and box[2] <= 100 for box in boxes)
    for i, a in enumerate(boxes):
        assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in boxes[:i])


def test_half_a_student_interval_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (*range(1, 13), 30, 200):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=2e-4)


def test_of_many_methods_those_stand_out_that_are_cheap_or_good(tmp_path):
    scores = {"local": 80, "fedavg": 70, "stc": 85, "pfed1bs": 84, "ditto": 91, "eden": 90, "apfl": 60}
    mib = {"local": 0.0, "stc": 1.0, "pfed1bs": 2.0}
    names = [*scores, *KNOWN[6:7], "fedrep", "fedper", "dispfl"]
    folders = [
        run_folder(tmp_path, name, accuracies=(1, scores.get(name, 50)), total_mib=mib.get(name, 9.0)) for name in names
    ]
    found = groups(map(report.read, folders))
    led = {group.label for group, leads in zip(found, leading(found), strict=True) if leads}
    assert led == {"local", "fedavg", "stc", "ditto", "eden", "pfed1bs"}
    assert leading(found[:8]) == [True] * 8


def test_of_a_long_front_both_ends_stand_out(tmp_path):
    mib = {"local": 0.0, "pfed1bs-delta": 1.0, "obda": 2.0, "eden": 3.0, "zsign": 4.0, "stc": 5.0, "fedavg-ft": 6.0}
    mib |= {"ditto": 7.0, "fedbn": 8.0, "fedavg": 9.0}
    runs = [run_folder(tmp_path, name, accuracies=(1, 80 + mib[name] / 2), total_mib=mib[name]) for name in mib]
    found = groups(map(report.read, runs))
    led = {group.label for group, leads in zip(found, leading(found), strict=True) if leads}
    assert led == {"local", "fedavg", "fedbn", "ditto", "pfed1bs-delta", "obda"}


def test_our_method_stands_out_where_it_loses(tmp_path):
    names = ["pfed1bs-delta", "local", "fedavg", "obda", "eden", "zsign", "stc", "ditto", "fedbn"]
    runs = [run_folder(tmp_path, name, accuracies=(1, 50 + at), total_mib=9.0) for at, name in enumerate(names)]
    found = groups(map(report.read, runs))
    led = {group.label for group, leads in zip(found, leading(found), strict=True) if leads}
    assert led == {"pfed1bs-delta", "local", "fedavg", "fedbn", "ditto", "stc"}


def test_bytes_and_numbers_read_well():
    assert [size(count) for count in (0.5, 512, 1024, 1536, 2**25, 2**40, 2**52)] == [
        *("0.5 B", "512 B", "1 KiB", "1.5 KiB", "32 MiB", "1 TiB", "4096 TiB")
    ]
    assert [significant(value) for value in (0, 0.0019302368, 31.0563, 23345.6)] == ["0", "0.001930", "31.06", "23346"]


@pytest.mark.parametrize("name", ["accuracy-bytes", "accuracy-rounds", "training-loss"])
def test_a_picture_is_the_same_file_every_time_and_names_its_lines(tmp_path, name):
    records = records_of(tmp_path, "pfed1bs", "local", "fedavg")
    report.draw(records, name, tmp_path / "a.svg"), report.draw(records, name, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert "date" not in text.lower()
    words = words_of(tmp_path / "a.svg")
    assert {"pfed1bs", "fedavg"} <= set(words)
    assert ("local, 0 bytes" in words) == (name == "accuracy-bytes")
    assert ("local" in words) == (name != "accuracy-bytes")
    assert ("256 KiB" in words) == (name == "accuracy-bytes")


def test_training_alone_is_drawn_over_a_line_that_would_hide_it(tmp_path):
    report.draw(records_of(tmp_path, "local", "pfed1bs"), "accuracy-rounds", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.index('class="line" data-group="1"') < text.index('class="line" data-group="0"')


def test_a_picture_is_pixels_or_numbers_where_its_name_ends_so(tmp_path):
    folders = [run_folder(tmp_path, seed=seed, accuracies=(50, 90 + seed)) for seed in (0, 1)]
    records = list(map(report.read, folders))
    (
        report.draw(records, "accuracy-bytes", tmp_path / "a.png"),
        report.draw(records, "accuracy-bytes", tmp_path / "a.csv"),
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "method,rounds,bytes,mean,std,low,high,seeds",
        "pfed1bs,2,4096,50.0,0.0,50.0,50.0,2",
        "pfed1bs,4,8144,90.5,0.707107,84.1469,96.8531,2",
    ]
    with pytest.raises(ValueError, match="a.xyz names no kind of picture"):
        report.draw(records, "wire", tmp_path / "a.xyz")


def test_every_one_of_many_lines_is_named_once(tmp_path):
    report.draw(records_of(tmp_path, *KNOWN), "accuracy-rounds", tmp_path / "many.svg")
    words = words_of(tmp_path / "many.svg")
    assert [words.count(name) for name in KNOWN] == [1] * len(KNOWN)


def test_a_picture_without_content_is_refused(tmp_path):
    records = records_of(tmp_path, "local")
    for name in ("accuracy-bytes", "wire", "diagnostics"):
        with pytest.raises(ValueError, match=f"no run has what {name} shows"):
            report.draw(records, name, tmp_path / "a.svg")


def test_clients_are_sorted_by_local_training_beside_the_labels_they_hold(tmp_path):
    folders = [run_folder(tmp_path, name) for name in ("pfed1bs", "local")]
    (folders[1] / "labels.csv").write_text("client,0,1\n0,0,30\n1,20,20\n")
    report.draw(list(map(report.read, folders)), "accuracy-clients", tmp_path / "a.svg")
    words = words_of(tmp_path / "a.svg")
    assert "seed 0, by local" in words
    after = words[words.index("training samples") + 1 :]
    assert after[:6] == ["1", "0", "client", "0", "1", "1"]  # client 1 is worse; then the labels in the bars


@pytest.mark.parametrize("width", [90, 200, 350, 700])
def test_a_legend_has_the_columns_that_fit_and_a_line_for_every_broken_label(width):
    names = ["pfed1bs-delta", "fedavg"] * 6
    entry = width_of(names[0], TEXT) + (HANDLE + 0.8) * TEXT
    fits = [n for n in range(1, 13) if n == 1 or n * entry + (2 * (n - 1) + 0.8) * TEXT <= width]
    labels, columns, rows = arranged(names, width)
    assert labels == names and rows == -(-12 // fits[-1]) and columns == -(-12 // rows)
    labels, columns, rows = arranged(["many words " * 12, "short"], width)
    assert columns == 1 and rows == labels[0].count("\n") + 2 > 2
    assert "".join(labels[0].split()) == "manywords" * 12


def test_bars_say_of_how_many_seeds_they_are(tmp_path):
    found = [
        group
        for name, count in (("local", 1), ("ditto", 3), ("fedavg", 5))
        for group in groups(report.read(run_folder(tmp_path, name, seed)) for seed in range(count))
    ]
    assert bars_of(found) == "bars: 95 % intervals, 3 to 5 seeds; one seed has none"
    assert bars_of(found[1:2]) == "bars: 95 % intervals, 3 seeds" and bars_of(found[:1]) == ""


@pytest.mark.parametrize(("count", "said"), [(3, "bands and bars"), (10, "coloured bands and bars")])
def test_a_picture_with_grey_lines_says_that_they_have_no_bars(count, said, tmp_path):
    names = [name for name in KNOWN if name != "pfed1bs"][:count]
    runs = [run_folder(tmp_path, name, seed, (50 + at, 90 - at)) for at, name in enumerate(names) for seed in (0, 1)]
    report.draw(list(map(report.read, runs)), "accuracy-rounds", tmp_path / "a.svg")
    assert f"{said}: 95 % intervals, 2 seeds" in words_of(tmp_path / "a.svg")
