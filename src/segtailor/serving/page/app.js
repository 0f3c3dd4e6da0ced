// The page: sends a picture or camera frames to the server, draws the mask that comes back, and says what it means.
const $ = (id) => document.getElementById(id);
const STAGES = { decode: "#e0a458", resize: "#c46d5e", network: "#2a9d8f", colour: "#5b8fd9", encode: "#9b7ec9" };
const MEANING = {
  decode: "from file to pixels", resize: "of pictures too large for memory", colour: "shares and palette", encode: "the mask as PNG",
  network: "normalise, compute, take the best class; a file of fixed size also resizes here",
};
const LONGEST = 2048; // pixels of a side on the screen; larger pictures are drawn smaller
const CAMERA_WIDTH = 960;

let model = { classes: [], described: "", upload_bytes: Infinity };
let shown = null; // { name, mask: ImageData, url } of the last answer
let isolated = null; // class that is shown alone
let camera = null; // MediaStream while it runs
let sorted = null; // the stream for which classes were put in order
let turn = 0; // rises with every new wish, so that late answers to old ones are dropped

// ---- talking to the server

async function segment(blob) {
  if (blob.size > model.upload_bytes) {
    throw new Error(`The file is over the limit of ${Math.round(model.upload_bytes / 2 ** 20)} MB. Make it smaller first.`);
  }
  const start = performance.now();
  let answer;
  try {
    answer = await fetch("/segment", { method: "POST", body: blob, headers: { "content-type": "application/octet-stream" } });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const facts = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (!answer.ok) throw new Error(facts.error);
  facts.round_trip_ms = performance.now() - start;
  return facts;
}

async function show(blob, name) {
  stopCamera();
  const mine = ++turn;
  busy(true);
  say("");
  try {
    const facts = await segment(blob);
    if (mine !== turn) return;
    let picture = null;
    try {
      picture = await createImageBitmap(facts.picture ? decoded(facts.picture) : blob);
    } catch {
      say("The browser cannot show this kind of file, so the mask stands alone.");
    }
    await draw(picture, facts, name);
    if (mine === turn) $("status").textContent = `Labelled ${name}.`;
  } catch (problem) {
    if (mine === turn) say(problem.message);
  } finally {
    if (mine === turn) busy(false);
  }
}

// ---- drawing

const decoded = (text) => new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], { type: "image/png" });

async function draw(picture, facts, name) {
  const file = decoded(facts.mask);
  const mask = await createImageBitmap(file, { colorSpaceConversion: "none" });
  const scale = Math.min(1, LONGEST / Math.max(facts.width, facts.height));
  const width = Math.max(1, Math.round(facts.width * scale)), height = Math.max(1, Math.round(facts.height * scale));
  for (const canvas of [$("picture"), $("mask")]) {
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  }
  const below = $("picture").getContext("2d");
  below.clearRect(0, 0, width, height);
  if (picture) below.drawImage(picture, 0, 0, width, height);
  const above = $("mask").getContext("2d", { willReadFrequently: true });
  above.imageSmoothingEnabled = false;
  above.drawImage(mask, 0, 0, width, height);
  if (shown) URL.revokeObjectURL(shown.url);
  shown = { name, mask: above.getImageData(0, 0, width, height), url: URL.createObjectURL(file) };
  $("welcome").hidden = true;
  $("view").hidden = false;
  for (const part of [$("stage"), $("legend")]) part.classList.add("filled");
  $("stage").style.setProperty("--aspect", width / height);
  $("latency").hidden = false;
  fit();
  $("download").href = shown.url;
  $("download").download = `${name.replace(/\.[^.]*$/, "") || "picture"}-mask.png`;
  $("download").removeAttribute("aria-disabled");
  const sure = facts.confidence == null ? "" : ` · ${Math.round(100 * facts.confidence)} % sure`;
  const tiles = facts.tiles > 1 ? ` · ${facts.tiles} tiles` : "";
  $("size").textContent = `${facts.width} × ${facts.height}${tiles}${sure}`;
  legend(facts.shares);
  if (!model.classes.length) tell(facts.facts);
  latency(facts);
  isolate(isolated);
}

function fit() {
  // Small pictures grow to fill the stage: canvases have no such rule of their own.
  const room = $("view").getBoundingClientRect(), canvas = $("mask");
  const edge = parseFloat(getComputedStyle($("view")).paddingLeft) * 2;
  const scale = Math.min((room.width - edge) / canvas.width, (room.height - edge) / canvas.height);
  for (const each of [$("picture"), canvas]) {
    each.style.width = `${canvas.width * scale}px`;
    each.style.height = `${canvas.height * scale}px`;
  }
}

function legend(shares) {
  const order = model.classes.map((_, index) => index).sort((a, b) => (shares[b] ?? 0) - (shares[a] ?? 0) || a - b);
  const most = Math.max(...shares, 1e-9);
  const list = $("classes"), focused = document.activeElement?.dataset?.index;
  if (!list.children.length) model.classes.forEach((each, index) => list.append(entry(each, index)));
  for (const index of order) {
    const row = list.querySelector(`[data-index="${index}"]`), share = shares[index] ?? 0;
    row.classList.toggle("absent", !share);
    row.querySelector(".share").textContent = shares.length ? percent(share) : "";
    row.querySelector("u").style.transform = `scaleX(${share / most})`;
    if (!camera || camera !== sorted) list.append(row.parentElement); // a live list that jumps about cannot be read
  }
  sorted = camera;
  if (focused !== undefined) list.querySelector(`[data-index="${focused}"]`)?.focus();
}

function tell(facts) {
  // Tasks without classes say a few numbers instead: metres of depth, how sure each joint is.
  const rows = Object.entries(facts).map(([name, value]) => {
    const item = document.createElement("li");
    item.textContent = `${name.replace(/_m$/, " (m)")}: ${value.toFixed(2)}`;
    return item;
  });
  $("classes").replaceChildren(...rows);
}

function entry({ name, colour }, index) {
  const item = document.createElement("li"), row = document.createElement("button");
  row.dataset.index = index;
  row.setAttribute("aria-pressed", "false");
  row.title = `Show only ${name}`;
  for (const [kind, text] of [["i", ""], ["span", name], ["span", ""], ["u", ""]]) {
    row.append(Object.assign(document.createElement(kind), { textContent: text }));
  }
  row.children[1].className = "name";
  row.children[2].className = "share";
  row.children[0].style.background = row.children[3].style.background = `rgb(${colour})`;
  row.onclick = () => isolate(isolated === index ? null : index);
  item.append(row);
  return item;
}

function isolate(index) {
  isolated = index;
  for (const row of $("classes").querySelectorAll("button")) row.setAttribute("aria-pressed", String(Number(row.dataset.index) === index));
  if (!shown) return;
  const { data, width, height } = shown.mask, changed = new ImageData(new Uint8ClampedArray(data), width, height);
  if (index !== null) {
    const [red, green, blue] = model.classes[index].colour;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at] !== red || data[at + 1] !== green || data[at + 2] !== blue) changed.data[at + 3] = 0;
    }
  }
  $("mask").getContext("2d").putImageData(changed, 0, 0);
}

function latency({ timings_ms: times, round_trip_ms: whole }) {
  const entries = Object.entries(times), sum = entries.reduce((total, [, ms]) => total + ms, 0);
  $("bar").replaceChildren(...entries.map(([name, ms]) => {
    const part = document.createElement("i");
    part.style.flex = `${ms} 0 0`;
    part.style.background = STAGES[name];
    return part;
  }));
  const rows = entries.map(([name, ms]) => [STAGES[name], name, ms, ""]);
  rows.push(["", "all stages", sum, "sum"], ["", "with transfer", whole, ""]);
  $("stages").replaceChildren(...rows.flatMap(([colour, name, ms, kind]) => {
    const spot = document.createElement("i"), term = document.createElement("dt"), value = document.createElement("dd");
    spot.style.background = colour || "none";
    term.textContent = name;
    term.title = MEANING[name] ?? "";
    value.textContent = `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
    term.className = value.className = kind;
    return [spot, term, value];
  }));
  $("rate").textContent = `${(1000 / whole).toFixed(1)} per second`;
}

const percent = (share) => (share && share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`);

function say(text) {
  $("message").textContent = text.charAt(0).toUpperCase() + text.slice(1);
  $("message").hidden = !text;
}

function busy(is) {
  $("busy").hidden = !is;
}

function opacity(value) {
  $("opacity").value = value;
  $("opacity-value").textContent = `${value} %`;
  $("mask").style.opacity = value / 100;
}

// ---- camera

async function toggleCamera() {
  if (camera) return stopCamera();
  const mine = ++turn;
  busy(false);
  say("");
  if (!navigator.mediaDevices?.getUserMedia) {
    return say("The browser gives cameras to pages of this machine or over https only. Open the page as http://127.0.0.1.");
  }
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: CAMERA_WIDTH }, facingMode: "environment" } });
    if (mine !== turn) return stream.getTracks().forEach((track) => track.stop());
    camera = stream;
  } catch (problem) {
    const why = { NotFoundError: "No camera was found. Connect one, or open a picture.", NotAllowedError: "The camera was not allowed. Allow it in the browser's address bar.", NotReadableError: "The camera is in use by another program." };
    return say(why[problem.name] ?? `The camera did not start (${problem.message}).`);
  }
  pressed(true);
  try {
    await watch(camera);
  } catch (problem) {
    say(problem.message);
  }
  stopCamera();
}

async function watch(stream) {
  const video = Object.assign(document.createElement("video"), { srcObject: stream, muted: true, playsInline: true });
  await video.play();
  const still = document.createElement("canvas");
  while (camera === stream && stream.active) {
    const scale = Math.min(1, CAMERA_WIDTH / video.videoWidth);
    [still.width, still.height] = [Math.round(video.videoWidth * scale), Math.round(video.videoHeight * scale)];
    still.getContext("2d").drawImage(video, 0, 0, still.width, still.height);
    const facts = await segment(await new Promise((done) => still.toBlob(done, "image/jpeg", 0.85)));
    if (camera === stream) await draw(still, facts, "camera");
    await new Promise(requestAnimationFrame); // a hidden page rests
  }
}

function stopCamera() {
  camera?.getTracks().forEach((track) => track.stop());
  camera = null;
  pressed(false);
}

function pressed(is) {
  $("camera").setAttribute("aria-pressed", String(is));
  $("camera").querySelector("b").textContent = is ? "Stop" : "Camera";
}

// ---- hands and keys

function point(event) {
  const canvas = $("mask"), box = canvas.getBoundingClientRect(), tip = $("tip");
  const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
  const y = Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
  tip.hidden = !shown || x < 0 || y < 0 || x >= canvas.width || y >= canvas.height;
  if (tip.hidden) return;
  const [red, green, blue] = shown.mask.data.subarray(4 * (y * canvas.width + x));
  const found = model.classes.find(({ colour }) => colour[0] === red && colour[1] === green && colour[2] === blue);
  const frame = $("view").getBoundingClientRect();
  tip.textContent = found?.name ?? "";
  tip.hidden = !found;
  tip.style.left = `${event.clientX - frame.left}px`;
  tip.style.top = `${event.clientY - frame.top}px`;
}

function take(files) {
  const file = [...(files ?? [])][0];
  if (file) show(file, file.name || "picture.png");
}

let before = 60; // opacity to come back to
const KEYS = {
  o: () => $("file").click(),
  c: toggleCamera,
  d: () => shown && $("download").click(),
  h: () => {
    if (Number($("opacity").value)) [before] = [$("opacity").value], opacity(0);
    else opacity(before);
  },
  Escape: () => (camera ? stopCamera() : isolate(null)),
};

function start() {
  $("open").onclick = KEYS.o;
  $("camera").onclick = toggleCamera;
  $("file").onchange = () => {
    take($("file").files);
    $("file").value = ""; // so that the same file can be chosen again
  };
  $("opacity").oninput = () => opacity(Number($("opacity").value));
  $("mask").onpointermove = $("mask").onpointerdown = point;
  $("mask").onpointerleave = () => ($("tip").hidden = true);
  const stage = $("stage");
  let depth = 0; // entering a child leaves the parent
  document.ondragenter = () => stage.classList.toggle("dropping", ++depth > 0);
  document.ondragleave = () => stage.classList.toggle("dropping", --depth > 0);
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => {
    event.preventDefault();
    stage.classList.toggle("dropping", (depth = 0) > 0);
    take(event.dataTransfer.files);
  };
  document.onpaste = (event) => take(event.clipboardData.files);
  document.onkeydown = (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat) KEYS[event.key.length > 1 ? event.key : event.key.toLowerCase()]?.();
  };
  new ResizeObserver(() => shown && fit()).observe(stage);
  opacity(60);
}

async function meet() {
  try {
    model = await (await fetch("/model")).json();
  } catch {
    return say("The server does not answer. Is it still running?");
  }
  document.title = `${model.model} · segtailor`;
  $("model").textContent = model.model;
  $("runtime").textContent = model.runtime;
  $("runtime").title = model.note ?? "";
  if (!model.classes.length) $("classes-title").firstChild.textContent = `${model.described.charAt(0).toUpperCase()}${model.described.slice(1)} `;
  legend([]);
}

start();
meet();
