// What both Go peers share: POST /plants with net/http and encoding/json.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strings"
)

const insert = "INSERT INTO plants (id, name, tag) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING"

type Plant struct {
	ID   *int64  `json:"id,omitempty"`
	Name *string `json:"name"`
	Tag  *string `json:"tag,omitempty"`
}

func respond(writer http.ResponseWriter, status int, content any) {
	body, _ := json.Marshal(content)
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(status)
	writer.Write(body)
}

func refuse(writer http.ResponseWriter, status int, message string) {
	respond(writer, status, map[string]any{"code": status * 100, "message": message})
}

// serve runs the server; add returns the number of rows that it has inserted, which is 0 if the id is in use.
func serve(add func(context.Context, Plant) (int64, error)) {
	valid := sha256.Sum256([]byte(os.Getenv("PLANTS_TOKENS")))
	http.HandleFunc("/readyz", func(writer http.ResponseWriter, _ *http.Request) {
		respond(writer, 200, map[string]string{"status": "ready"})
	})
	http.HandleFunc("/plants", func(writer http.ResponseWriter, request *http.Request) {
		scheme, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
		presented := sha256.Sum256([]byte(token))
		if scheme != "Bearer" || subtle.ConstantTimeCompare(presented[:], valid[:]) == 0 {
			refuse(writer, 401, "The token is missing or not valid.")
			return
		}
		var plant Plant
		decoder := json.NewDecoder(http.MaxBytesReader(writer, request.Body, 1<<20))
		if decoder.Decode(&plant) != nil || plant.ID == nil || plant.Name == nil {
			refuse(writer, 400, "The body is not a plant.")
			return
		}
		rows, err := add(request.Context(), plant)
		if err != nil {
			log.Print(err)
			refuse(writer, 503, "The store failed.")
			return
		}
		if rows == 0 {
			refuse(writer, 400, "The id is in use.")
			return
		}
		plant.ID = nil
		respond(writer, 200, plant)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
