#!/usr/bin/env bash
# CamVid from A to Z with one recipe, on the CPU: run.sh PATH [RUNS] [RECIPE]. After an interruption the same command continues.
set -euo pipefail

path=${1:?usage: run.sh PATH [RUNS] [RECIPE]}
runs=${2:-runs/camvid}
recipe=${3:-lpsnet}
target='cpu/onnxruntime/fp32?threads=2'
drives=(0001TP 0006R0 0016E5 Seq05VD)
declare -A spaces=([lpsnet]=scalable_path [squeezenas]=inverted_residual [autortnet]=hyper_cell
                   [fasterseg]=multi_resolution [auxcells]=decoder_cell)
space=${spaces[$recipe]:?RECIPE is one of ${!spaces[*]}}
pack="$runs/$space.json"
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

segtailor data check "camvid:$path"
[ -e "$pack" ] ||
  segtailor calibrate --space "$space" --target "$target" --image 360x480 --classes 11 --minutes 10 --out "$pack"
segtailor search "$recipe" --data "camvid:$path" --image 360x480 --pack "$pack" --out "$runs/search-$recipe" --json > "$runs/search.json"
found=$(field architecture < "$runs/search.json")

for drive in "${drives[@]}"; do
  run="$runs/$recipe-$drive"
  segtailor train "$found" --data "camvid:$path?fold=$drive" --crop 352x480 --epochs 200 --batch 16 --optimiser adamw --lr 0.004 --out "$run"
  segtailor eval "$run/weights" --data "camvid:$path?fold=$drive" --split val --json > "$run/val.json"
  echo "$drive: $(field miou < "$run/val.json")"
done

model="$runs/$recipe-${drives[0]}/weights"
segtailor export "$model" --to onnx --image 360x480 --output labels --preprocess --data "camvid:$path"
segtailor bench "$model/model.onnx" --target "$target"
segtailor report "$runs/search-$recipe" "${drives[@]/#/$runs/$recipe-}" --out "$runs/comparison.html"
