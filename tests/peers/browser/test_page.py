"""The page in a real browser: every view, the keyboard, links, follow, hostile texts, files, and accessibility."""

import re
from pathlib import Path

import pytest

import envsdk
from envsdk.authoring._event_loops import run
from envsdk.viewer import _notebook as notebook
from envsdk.viewer._filters import parse_filter
from envsdk.viewer._page import write_page
from envsdk.viewer._resources import Resources
from envsdk.viewer._sources import Source
from envsdk.viewer.reporting import as_html, report

VIEWS = {
    "list": ("#/run/0", ".tr[aria-rowindex='2'] .reward"),
    "groups": ("#/run/0?group=1", ".group-cell"),
    "wrong filter": ("#/run/0?q=rewrd%3C1", ".problem code"),
    "found": ("#/run/1?q=text:%22founded%20in%22", ".tr.hit mark"),
    "conversation": ("#/run/2/1?step=14", ".break-mark.rewrite"),
    "branches": ("#/run/6/1?step=2", ".about-call"),
    "sub-agents": ("#/run/1/1?context=main/researcher-1", ".origin"),
    "tokens": ("#/run/0/1?view=tokens&at=40", ".tk.selected"),
    "table": ("#/run/0/1?view=tokens&as=table&at=40", ".token-row.selected"),
    "log-probabilities": ("#/run/3/1?view=tokens&color=logprob", ".tk.heat"),
    "differences": ("#/run/3/1?view=tokens&color=difference", ".tk.down"),
    "advantages": ("#/run/3/1?view=tokens&color=advantage&as=table&at=300", ".tk.up"),
    "history gap": ("#/run/7/1?view=tokens&color=gap", ".tk.up"),
    "prompt": ("#/run/2/1?view=prompt&step=14", ".token-line .tk"),
    "about": ("#/run/0/1?view=about", ".about table"),
    "side by side": ("#/compare?e=0.1,4.1", ".diverge-mark"),
    "runs": ("#/runs", ".tr[aria-rowindex='2']"),
    "hostile": ("#/run/5/1?step=2", ".hidden-character"),
}
RUNS = ("strip", "delegate", "notes", "long", "random", "hostile", "errand", "taught")


@pytest.fixture
def url(serve, runs):
    return serve(*(runs[name] for name in RUNS))


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_opens_by_its_link_without_a_message_in_the_console(watched, url, view):
    place, element = VIEWS[view]
    watched.open(url + place, element)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(browser, url, theme):
    from axe_playwright_python.sync_playwright import Axe

    for width in (1280, 400):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
        page = context.new_page()
        for name, (place, element) in VIEWS.items():
            page.goto("about:blank")
            page.goto(url + place)
            page.wait_for_selector(element, state="attached")
            found = Axe().run(page)
            assert found.violations_count == 0, (name, width, found.generate_report())
        for dialog in (
            lambda page: page.keyboard.press("?"),
            lambda page: page.get_by_text("Share", exact=True).click(),
        ):
            page.goto(url + "#/run/0/1")
            page.wait_for_selector(".conversation")
            dialog(page)
            page.wait_for_selector("dialog[open]")
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()
            page.keyboard.press("Escape")
        context.close()


def test_a_narrow_window_scrolls_only_inside_its_parts(watched, url):
    watched.page.set_viewport_size({"width": 360, "height": 640})
    for place, element in VIEWS.values():
        page = watched.open(url + place, element)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


def test_the_list_is_filtered_and_sorted(watched, url):
    page = watched.open(url + "#/run/0", ".tr .status")
    page.fill("input[type=search]", "seed=1 break:thinking_stripped")
    page.wait_for_selector(".table[aria-rowcount='3']")
    assert "2 of 4" in page.inner_text(".figures")
    page.click("text=Sampled")
    page.wait_for_selector("[aria-sort=ascending] >> text=Sampled")
    assert "sort=sampled" in page.url and "seed%3D1" in page.url
    page.fill("input[type=search]", "seed=1 rewrd<1")
    page.wait_for_selector("input[aria-invalid=true]")
    assert "at 7: 'rewrd' is unknown; did you mean reward?" in page.inner_text(".problem")


def test_the_worst_episodes_come_first_at_a_click(watched, url):
    page = watched.open(url + "#/run/1", ".tr .status")
    page.click("text=Worst first")
    page.wait_for_selector("[aria-sort=ascending] >> text=Reward")
    rewards = [float(text) for text in page.locator(".table .reward b").all_inner_texts()]
    assert rewards == sorted(rewards)


def test_after_a_click_on_a_run_the_keys_are_for_its_list(watched, url):
    page = watched.open(url + "#/run/0", ".tr .status")
    page.click(".runs a >> nth=1")
    page.wait_for_selector(".table:focus")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".conversation")
    assert "#/run/1/2" in page.url


def test_in_a_narrow_window_the_list_keeps_the_task_and_the_result(watched, url):
    watched.page.set_viewport_size({"width": 400, "height": 800})
    page = watched.open(url + "#/run/1", ".tr .reward")
    heads = page.locator("[role=columnheader]").all_inner_texts()
    assert [head.strip("↑↓ \n") for head in heads] == ["Episode", "Task", "Reward"]


def test_contexts_are_a_column_only_where_an_episode_has_several(watched, url):
    page = watched.open(url + "#/run/1", ".tr .status")
    assert page.locator("[role=columnheader] >> text=Contexts").count() == 1
    page = watched.open(url + "#/run/0", ".tr .status")
    assert page.locator("[role=columnheader] >> text=Contexts").count() == 0


def test_two_runs_are_chosen_and_compared_task_by_task(watched, url):
    page = watched.open(url + "#/runs", "text=2 tasks in both")  # when all rows are read
    assert page.locator("select").evaluate_all("all => all.map((one) => one.selectedOptions[0].text)") == [
        "strip",
        "random",
    ]
    assert page.inner_text("[aria-rowindex='2'] [role=gridcell] >> nth=4") == "−1.000"
    page.select_option("select >> nth=1", label="delegate")
    page.wait_for_selector("text=0 tasks in both")
    assert "second=1" in page.url


def test_folds_branches_notes_and_recalls_are_explained_where_they_are(watched, url):
    page = watched.open(url + "#/run/6/1", ".conversation")
    legend = page.inner_text(".lane-legend").split("\n")
    assert legend[:5] == ["kept", "observed", "sampled", "trained", "dropped"]
    assert {"break", "opens a context", "returns"} <= set(legend)
    for tool in ("fold", "branch", "note", "recall"):
        call = page.locator(".call", has=page.locator(".name", has_text=re.compile(f"^{tool}$"))).first
        assert call.locator(".about-call").count() == 1, tool
    assert page.locator(".cut text").first.text_content().startswith("fold −")
    page.locator(".call .opened").first.click()
    page.wait_for_selector("text=Opened by main in step 3")
    page.click(".origin >> text=step 3")
    page.wait_for_selector(".panel >> text=Step 3")
    mark = page.locator("#step-3 .dropped-mark")
    assert re.fullmatch(r"dropped at step \d+ \(fold\)", mark.inner_text().strip())
    mark.click()
    page.wait_for_selector(".panel >> text=fold: ")


def test_a_link_to_a_step_of_another_context_shows_that_context(watched, url):
    page = watched.open(url + "#/run/6/1?step=4", ".origin")
    assert page.inner_text(".lane-names [aria-pressed=true] .lane-name") == "branch-1"


def test_a_prompt_has_kept_tokens_in_gray(watched, url):
    page = watched.open(url + "#/run/2/1?view=prompt&step=15&at=0", ".tk.selected")
    assert page.locator(".tk").first.get_attribute("class").split()[1] == "of-kept"
    page.keyboard.press("End")
    page.wait_for_selector(".tk.of-observed.selected")


def test_one_episode_is_shared_as_a_file_that_opens_it(watched, url, runs, tmp_path):
    page = watched.open(url + "#/run/1/2", ".conversation")
    page.get_by_text("Share", exact=True).click()
    command, link = page.locator(".copied code").all_inner_texts()
    assert command == f"envsdk view {runs['delegate']} --html episode-2.html --filter line=2"
    assert link == page.url
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    file = tmp_path / "episode-2.html"
    assert write_page(file, Resources([Source(runs["delegate"])]), parse_filter("line=2")) == 1
    page = watched.open(file.as_uri(), ".conversation")
    assert page.inner_text("h1").startswith("Episode 2 ")


def test_everything_is_reached_with_the_keyboard(watched, url):
    page = watched.open(url + "#/run/1", ".tr .status")
    page.keyboard.press("j")
    page.wait_for_selector("[aria-rowindex='3'][aria-selected=true]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".conversation")
    assert "#/run/1/2" in page.url
    page.keyboard.press("n")
    page.keyboard.press("n")
    page.wait_for_selector(".panel >> text=Step 2")
    page.keyboard.press("m")
    page.wait_for_selector("text=prompt of step 2")
    page.keyboard.press("t")
    page.wait_for_selector("button[aria-pressed=true] >> text=Tokens")
    page.wait_for_selector(".token-line .tk")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tk.selected[data-at='1']")
    page.keyboard.press("v")
    page.wait_for_selector(".token-row.selected[data-at='1']")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open] >> text=Next token")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("]")
    page.wait_for_selector("h1")
    assert "#/run/1/3" in page.url
    page.keyboard.press("Escape")
    page.wait_for_selector("[aria-rowindex='4'][aria-selected=true]")
    page.keyboard.press("g")
    page.wait_for_selector(".group-cell")
    page.keyboard.press("/")
    page.keyboard.type("status:error")
    page.wait_for_selector("text=No episode matches the filter")


def test_an_episode_leads_to_the_next_one_of_the_list_and_back_to_its_filter(watched, url):
    page = watched.open(url + "#/run/0?q=seed%3D1&sort=line&desc=1", ".table[aria-rowcount='3']")
    first, second = (re.search(r"/run/0/\d+", link.get_attribute("href"))[0] for link in page.locator(".tr a").all())
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_selector(".conversation")
    assert page.url.endswith(first)
    page.keyboard.press("]")
    page.wait_for_url(f"**{second}")
    page.keyboard.press("Escape")
    page.wait_for_selector(".table[aria-rowcount='3'] [aria-rowindex='3'][aria-selected=true]")


def test_a_link_leads_back_to_the_same_place(watched, url):
    page = watched.open(url + "#/run/2/1", ".conversation")
    page.click(".block >> nth=13")
    page.wait_for_selector(".panel >> text=Step 14")
    page.click("text=Prompt that the model saw")
    page.wait_for_selector("text=prompt of step 14")
    link = page.url
    page.go_back()
    page.wait_for_selector(".conversation")
    watched.open(link, "text=prompt of step 14: 1,043 tokens, 446 kept")


def test_new_episodes_of_a_run_appear(watched, serve, running):
    folder, episodes = running
    run(folder.append(episodes[0]))
    page = watched.open(serve(folder.path, follow=True) + "#/run/0", ".tr .status")
    page.wait_for_selector(".live")
    for number in (1, 2):
        run(folder.append(episodes[number]))
        page.wait_for_selector(f"[title='episode {number}']")
    assert "of 4 planned" in page.inner_text(".figures")


def test_hostile_texts_are_shown_and_have_no_effect(watched, url):
    for place, element in (
        ("#/run/5", ".tr .status"),
        ("#/run/5?group=1", ".group-cell"),
        ("#/run/5/1?step=2", ".call"),
        ("#/run/5?q=text:window", ".tr.hit .hidden-character"),
        ("#/run/5/1?view=about", ".about"),
        ("#/run/5/1?view=tokens", ".tk"),
        ("#/compare?e=5.1,0.1", ".compare-cell"),
        ("#/run/5?q=%3Cimg%20src=x%20onerror=alert(1)%3E", ".figures"),
    ):
        page = watched.open(url + place, element)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main script, main img").count() == 0
    page = watched.open(url + "#/run/5/1", ".call")
    page.click(".reasoning summary >> nth=0")
    shown = page.inner_text(".conversation")
    assert "<script>window.hacked = 1</script>" in shown
    assert r"\x1b[31mred\u202egnp.exe<!--<|im_end|>" in shown
    assert not set("\x1b\u202e") & set(page.content())


def test_a_damaged_line_is_shown_as_damaged_and_the_rest_works(watched, serve, runs):
    url = serve(runs["damaged"])
    page = watched.open(url + "#/run/0", ".tr.damaged")
    assert page.locator(".table .tr").count() == 4
    assert "not JSON" in page.inner_text(".tr.damaged")
    watched.open(url + "#/run/0/3", ".conversation")
    watched.open(url + "#/run/0/2", "text=Line 2 cannot be shown")
    assert [problem for problem in watched.problems if "404" not in problem] == []
    watched.problems.clear()  # the browser reports each answer that is an error


def test_a_file_works_without_a_server(watched, runs, tmp_path):
    file = tmp_path / "run.html"
    count = write_page(file, Resources([Source(runs[name]) for name in RUNS if name != "long"]), parse_filter(""))
    assert count == 20
    watched.page.context.set_offline(True)
    for name, (place, element) in VIEWS.items():
        if place.startswith("#/run/3"):  # the long one
            continue
        place = re.sub(r"run/([4-9])", lambda found: f"run/{int(found[1]) - 1}", place).replace("0.1,4.1", "0.1,3.1")
        page = watched.open(f"file://{file}{place}", element)
        assert page.evaluate("window.hacked") is None, name
    assert {url.split(":")[0] for url in watched.requests} <= {"file", "about", "data", "blob"}


def test_texts_are_found_in_the_conversation_and_in_the_tokens(watched, url):
    page = watched.open(url + "#/run/1/1", ".conversation")
    page.fill("input[type=search]", "founded in 1613")
    page.keyboard.press("Enter")
    page.wait_for_selector("mark")
    assert re.fullmatch(r"1 of \d+", page.inner_text(".search .count"))
    page = watched.open(url + "#/run/0/1?view=tokens", ".tk")
    page.fill("input[type=search]", "step by step")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tk.match")
    assert "".join(page.locator(".tk.match").all_inner_texts()).strip() == "step by step"


def test_the_contents_of_a_run_are_searched_and_a_result_leads_to_its_step(watched, url, runs, tmp_path):
    file = tmp_path / "run.html"
    write_page(file, Resources([Source(runs[name]) for name in RUNS if name != "long"]), parse_filter(""))
    found = []
    for place in (url, f"file://{file}"):
        page = watched.open(place + "#/run/1", ".tr .status")
        page.fill("input[type=search]", 'text:"FOUNDED in 1613"')
        page.wait_for_selector(".tr.hit mark")
        assert "2 of 4" in page.inner_text(".figures")
        found.append(page.locator(".tr.hit").all_inner_texts())
        page.keyboard.press("Enter")
        for _ in range(2):
            page.keyboard.press("j")
        page.wait_for_selector(".tr.hit.selected")
        page.keyboard.press("Enter")
        page.wait_for_selector(".panel >> text=Step 5")
        assert "context=main%2Fresearcher-1" in page.url and "step=5" in page.url
        assert page.inner_text(".search .count").startswith("2 of ")
        page.wait_for_function("""() => {
            const [box] = [...document.querySelectorAll('mark')].map((mark) => mark.getBoundingClientRect());
            return box.top > 0 && box.bottom < innerHeight;
        }""")
        page.go_back()
        page.fill("input[type=search]", "text:nowhere")
        page.wait_for_selector("text=No episode matches the filter")
    assert found[0] == found[1]


def test_the_themes_are_remembered(watched, url):
    page = watched.open(url + "#/run/0", ".tr .status")
    theme = page.get_attribute("html", "data-theme")
    page.keyboard.press("Shift+D")
    page.reload()
    page.wait_for_selector(".tr .status")
    assert page.get_attribute("html", "data-theme") != theme


def test_two_episodes_of_a_task_show_where_they_diverge(watched, url, runs):
    chosen = []
    for run_ in (0, 4):  # episodes are in the order in which they ended
        source = Source(runs[RUNS[run_]])
        source.refresh()
        chosen.append(f"{run_}.{next(row.line for row in source.rows if row.id == 'envsdk/MathChat-v0/0')}")
    page = watched.open(url + f"#/compare?e={','.join(chosen)}", ".diverge-mark")
    assert "2 equal messages first" in page.inner_text(".episode-head")
    page.wait_for_selector("text=first different token")
    page.click(".episode-head .faint a >> nth=0")
    page.wait_for_selector(".tk.selected")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_a_report(browser, runs, tmp_path, theme):
    from axe_playwright_python.sync_playwright import Axe

    for names in (("strip", "random", "notes"), ("strip",), ("hostile", "damaged")):
        file = tmp_path / "report.html"
        file.write_text(as_html(report(*(runs[name] for name in names))), encoding="utf-8")
        for width in (1280, 400):
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
            page = context.new_page()
            problems = []
            page.on("console", lambda message, problems=problems: problems.append(message.text))
            page.goto(file.as_uri())
            found = Axe().run(page)
            assert found.violations_count == 0, (names, width, found.generate_report())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (names, width)
            assert problems == []
            context.close()


# What it costs, measured in the page, and reported in the summary.

SCROLL = """async () => {
  const box = document.querySelector('.token-box, .table');
  const times = [];
  let last = performance.now();
  for (let frame = 0; frame < 120; frame++) {
    box.scrollTop = frame % 30 === 29 ? Math.random() * box.scrollHeight : box.scrollTop + 137;
    await new Promise((resolve) => requestAnimationFrame(resolve));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def frames(page):
    times = sorted(page.evaluate(SCROLL))
    return f"{1000 * len(times) / sum(times):.0f} frames a second, the slowest {times[-1]:.0f} ms"


def test_five_thousand_episodes_are_listed(watched, serve, runs, tmp_path, figure):
    import orjson

    lines = [
        line for name in ("strip", "delegate") for line in (runs[name] / "trajectories.jsonl").read_bytes().splitlines()
    ]
    records = [orjson.loads(line) for line in lines]
    with (tmp_path / "trajectories.jsonl").open("wb") as file:
        for number in range(5000):
            file.write(orjson.dumps({**records[number % len(records)], "id": f"episode/{number}"}) + b"\n")
    page = watched.open(serve(tmp_path) + "#/run/0", ".table[aria-rowcount='5001']")
    listed = page.evaluate("performance.now()")
    figure(
        f"5,000 episodes ({Path(file.name).stat().st_size / 1e6:.0f} MB): listed after {listed / 1000:.2f} s; "
        f"{frames(page)}"
    )
    assert page.locator(".table .tr").count() < 100
    started = page.evaluate("performance.now()")
    page.fill("input[type=search]", 'text:"founded in 1613"')
    page.wait_for_selector(".tr.hit mark")
    first = page.evaluate("performance.now()")
    page.wait_for_function("() => !document.querySelector('.figures').innerText.includes('searched')")
    last = page.evaluate("performance.now()")
    figure(
        f"  searched: first result after {(first - started) / 1000:.2f} s, all after {(last - started) / 1000:.2f} s"
    )


def test_a_hundred_thousand_tokens_scroll(watched, serve, runs, figure):
    url = serve(runs["long"])
    for name, place in (("text", ""), ("table", "&as=table"), ("log-probabilities", "&color=logprob")):
        page = watched.open(url + "#/run/0/1?view=tokens" + place, ".tk.trained")
        shown = page.evaluate("performance.now()")
        figure(
            f"{page.inner_text('.token-bar >> text=tokens')}, {name}: shown after {shown / 1000:.2f} s; {frames(page)}"
        )
        assert page.locator(".tk").count() < 4000


def test_the_page_of_one_episode_works_in_the_frame_that_a_notebook_displays(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook.webbrowser, "open", lambda url: True)
    shown = envsdk.rollout("envsdk/MathChat-v0", "reference", seed=0).view()
    (tmp_path / "notebook.html").write_text(shown._repr_html_(), encoding="utf-8")
    watched.page.goto((tmp_path / "notebook.html").as_uri())
    frame = watched.page.frame_locator("iframe")
    frame.get_by_text("Tokens", exact=True).first.click()
    frame.locator(".tk").first.wait_for()


MISSING = "The file of the image is missing or damaged."


def test_images_are_in_the_conversation_and_at_their_tokens(watched, serve, illustrated):
    url = serve(illustrated)
    page = watched.open(url + "#/run/0/1", ".picture img")
    assert page.inner_text(".picture figcaption").startswith("300 × 200 PNG · 28 tokens · ")
    page.wait_for_function("document.querySelector('.picture img').naturalWidth === 300")
    page.click(".picture button")
    assert page.locator(".picture.large").count() == 1
    page.get_by_text(MISSING).wait_for()
    page = watched.open(url + "#/run/0/1?view=tokens&at=11", ".thumbnail img")
    assert page.locator(".tk.image").all_inner_texts() == ["28 placeholders", "5 placeholders"]
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tk.image.selected")
    assert "28" in page.inner_text(".token-detail")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-at='40'].selected")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".tk.image.selected")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".tk.selected:not(.image)")
    assert page.evaluate("window.hacked") is None
    assert all("404" in problem for problem in watched.problems)
    watched.problems.clear()


def test_the_table_of_tokens_has_one_row_for_an_image(watched, serve, illustrated):
    page = watched.open(serve(illustrated) + "#/run/0/1?view=tokens&as=table&at=20", ".token-row.selected .tk.image")
    assert page.locator(".token-row .tk.image").count() == 2
    assert page.inner_text(".token-row.selected .tk.image").startswith("300 × 200 PNG · 28 tokens · ")
    row = int(page.get_attribute(".token-row.selected", "aria-rowindex"))
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(f".token-row.selected[data-at='40'][aria-rowindex='{row + 1}']")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(".token-row.selected .tk.image")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(f".token-row.selected[aria-rowindex='{row - 1}']")
    rows = int(page.get_attribute(".token-box", "aria-rowcount"))
    page.keyboard.press("End")
    page.wait_for_selector(f".token-row.selected[aria-rowindex='{rows}']")


def test_a_file_has_its_images(watched, illustrated, tmp_path):
    write_page(tmp_path / "page.html", Resources([Source(illustrated)]), parse_filter(""))
    page = watched.open((tmp_path / "page.html").as_uri() + "#/run/0/1", ".picture img")
    page.wait_for_function("document.querySelector('.picture img').naturalWidth === 300")
    page.get_by_text("was changed").wait_for()
    assert all(request.startswith(("file:", "data:", "about:")) for request in watched.requests)
